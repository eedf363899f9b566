"""The published model, as MLflow runs it: a thin wrapper around release.py, which travels with it.

Input, one row per request: `ratings` (a list of {item, rating}, the user's own), and `n` (how many
items to recommend, 10 if left out) or `items` (which ones to predict). Output, one row per request: the
lists `items`, `titles` and `ratings` (predicted), best first or as asked, and `ignored` (how many own
ratings were of items outside the catalogue). Nothing is stored.
"""

from pathlib import Path

import mlflow
import pandas as pd
from mlflow.exceptions import MlflowException
from release import Release, ReleaseError

DEFAULT_N = 10


class ReleaseModel(mlflow.pyfunc.PythonModel):
    def load_context(self, context):
        self.release = Release.load(Path(context.artifacts["release"]))

    def predict(self, context, model_input: pd.DataFrame, params=None) -> pd.DataFrame:
        try:
            return pd.DataFrame([self._answer(request) for request in model_input.to_dict("records")])
        except ReleaseError as error:  # as a bad request, not as a failure of the server
            raise MlflowException.invalid_parameter_value(str(error)) from None

    def _answer(self, request):
        release = self.release
        own = _own_ratings(request.get("ratings"))
        if _is_given(request.get("items")):
            items = _items(request["items"])
            predicted = release.predict(own, items).tolist()
            answer = [
                (item, release.titles[release.row_of[item]], rating)
                for item, rating in zip(items, predicted, strict=True)
            ]
        else:
            answer = release.recommend(own, _number_of_items(request.get("n")))
        return {
            "items": [item for item, _, _ in answer],
            "titles": [title for _, title, _ in answer],
            "ratings": [rating for _, _, rating in answer],
            "ignored": sum(item not in release.row_of for item in own),
        }


def _own_ratings(entries):
    if not _is_given(entries):
        return {}
    try:
        return {str(entry["item"]): float(entry["rating"]) for entry in entries}
    except (TypeError, ValueError, KeyError):
        raise ReleaseError('ratings is a list of {"item": ..., "rating": a number}.') from None


def _items(items):
    if isinstance(items, str | bytes) or not hasattr(items, "__iter__"):
        raise ReleaseError("items is a list of the items to predict.")
    return [str(item) for item in items]


def _number_of_items(n):
    if not _is_given(n):
        return DEFAULT_N
    try:
        if float(n) == int(n):
            return int(n)
    except (TypeError, ValueError, OverflowError):
        pass
    raise ReleaseError("n says how many items to recommend and is a whole number.")


def _is_given(value):
    """A field left out arrives as None or NaN."""
    return not (value is None or (isinstance(value, float) and value != value))


mlflow.models.set_model(ReleaseModel())
