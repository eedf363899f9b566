"""MovieLens as Jali itself reads it, for tests that compare with published figures."""

from __future__ import annotations

from pathlib import Path

from expectations.suites import Minimums
from models.ratings import Ratings, RatingScale
from tasks.loading import load
from tasks.rating_files import RatingsSource
from tasks.validation import validate


def load_ml_100k(folder: Path) -> Ratings:
    return _validated(folder / "u.data", folder / "u.item", None)


def load_ml_1m(folder: Path) -> Ratings:
    return _validated(folder / "ratings.csv.gz", folder / "movies.dat", RatingScale(low=1, high=5))


def _validated(ratings: Path, items: Path, scale: RatingScale | None) -> Ratings:
    return validate(load(RatingsSource(path=str(ratings)), str(items), scale), Minimums())
