"""The published model, as MLflow runs it: a thin wrapper around release.py, which travels with it.

Input, one row per request: `ratings` (a list of {item, rating}, the user's own), and `n` (how many
items to recommend, 10 if left out) or `items` (which ones to predict). Output, one row per request: the
lists `items`, `titles` and `ratings` (predicted), best first or as asked, `ignored` (how many own ratings
were of items outside the catalogue) and `unknown` (the items asked for that are outside it). Nothing is stored.
"""

from pathlib import Path

import mlflow
import pandas as pd
from mlflow.exceptions import MlflowException
from release import DEFAULT_N, Release, ReleaseError


class ReleaseModel(mlflow.pyfunc.PythonModel):
    def load_context(self, context):
        self.release = Release.load(Path(context.artifacts["release"]))

    def predict(self, context, model_input: pd.DataFrame, params=None) -> pd.DataFrame:
        try:
            return pd.DataFrame([self._answer(request) for request in model_input.to_dict("records")])
        except ReleaseError as error:  # as a bad request, not as a failure of the server
            raise MlflowException.invalid_parameter_value(str(error)) from None

    def _answer(self, request):
        told = {name: value for name, value in request.items() if _is_given(value)}
        answer = self.release.answer(told.get("ratings", []), n=told.get("n", DEFAULT_N), items=told.get("items"))
        return {
            "items": [item for item, _, _ in answer.items],
            "titles": [title for _, title, _ in answer.items],
            "ratings": [rating for _, _, rating in answer.items],
            "ignored": answer.ignored,
            "unknown": answer.unknown,
        }


def _is_given(value):
    """A field left out arrives as None or NaN."""
    return not (value is None or (isinstance(value, float) and value != value))


mlflow.models.set_model(ReleaseModel())
