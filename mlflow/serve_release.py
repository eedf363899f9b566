"""The published model, as MLflow runs it: a thin wrapper around release.py, which travels with it.

Input, one row per request: `ratings` (a list of {item, rating}, the user's own), and `n` (how many
items to recommend) or `items` (which ones to predict). Output, one row per request: the lists
`items`, `titles` and `ratings` (predicted), best first, and `ignored` (how many own ratings were of
items outside the catalogue). Nothing is stored.
"""

from pathlib import Path

import mlflow
import pandas as pd
from release import Release

DEFAULT_N = 10


class ReleaseModel(mlflow.pyfunc.PythonModel):
    def load_context(self, context):
        self.release = Release.load(Path(context.artifacts["release"]))

    def predict(self, context, model_input: pd.DataFrame, params=None) -> pd.DataFrame:
        return pd.DataFrame([self._answer(request) for request in model_input.to_dict("records")])

    def _answer(self, request):
        release = self.release
        own = {str(entry["item"]): float(entry["rating"]) for entry in _given(request.get("ratings"), [])}
        items = _given(request.get("items"), None)
        if items is None:
            best = release.recommend(own, int(_given(request.get("n"), DEFAULT_N)))
        else:
            items = [str(item) for item in items]
            titles = [release.titles[release.row_of[item]] if item in release.row_of else "" for item in items]
            best = list(zip(items, titles, release.predict(own, items).tolist(), strict=True))
        return {
            "items": [item for item, _, _ in best],
            "titles": [title for _, title, _ in best],
            "ratings": [rating for _, _, rating in best],
            "ignored": sum(item not in release.row_of for item in own),
        }


def _given(value, otherwise):
    """A field left out arrives as None or NaN."""
    is_missing = value is None or (isinstance(value, float) and value != value)
    return otherwise if is_missing else value


mlflow.models.set_model(ReleaseModel())
