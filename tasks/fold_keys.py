"""Names under which the scores of folds are kept: they tell nobody which ratings they are of."""

from __future__ import annotations

import hmac
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np

import models
from models.privacy.specification import PrivacySpecification
from models.ratings import Ratings
from models.recommender import Recommender
from tasks.private_key import private_key
from tasks.state import State

JUDGES = Path(__file__).with_name("training.py")
"""Besides models/, the code on which scores depend."""


def fold_keys(
    state: State, ratings: Ratings, fits: Sequence[tuple[Recommender, PrivacySpecification]], n_folds: int
) -> list[list[str]]:
    """For each fit and fold the name of its scores, shape (n_fits, n_folds).

    A keyed hash of the ratings, the settings and the code: the same work has the same name, other ratings, settings
    or another version of the code another one; and without the key, which stays in the state folder, the name says
    nothing about the ratings.
    """
    key = private_key(state.folder / "cells.key", "remove it, and cells are computed anew")
    of_ratings = hmac.new(key, _code_digest(), "sha256")
    for column in _columns(ratings):
        of_ratings.update(str((column.dtype, column.shape)).encode() + column.tobytes())
    kind = ratings.batch.kind if ratings.batch else ""
    public = (str(ratings.catalogue.public), str(ratings.scale), kind, str(n_folds))
    for text in (*ratings.user_labels, *ratings.catalogue.items, *ratings.catalogue.feature_names, *public):
        of_ratings.update(text.encode() + b"\0")

    def name(recommender: Recommender, specification: PrivacySpecification, fold: int) -> str:
        one = of_ratings.copy()
        for part in (recommender.name, recommender.model_dump_json(), specification.model_dump_json(), str(fold)):
            one.update(part.encode() + b"\0")
        return one.hexdigest()

    return [[name(*fit, fold) for fold in range(n_folds)] for fit in fits]


def _columns(ratings: Ratings) -> Iterator[np.ndarray]:
    """Everything in the ratings that a score may depend on, but for the words."""
    yield from (ratings.users, ratings.items, ratings.values, ratings.catalogue.features)
    if ratings.own_epsilon is not None:
        yield ratings.own_epsilon
    if (batch := ratings.batch) is not None:
        yield from (batch.enters, batch.old_levels, batch.old_steps, batch.told.histogram, batch.told.cell_variance)


def _code_digest() -> bytes:
    digest = blake2b()
    for file in (*sorted(Path(str(models.__file__)).parent.rglob("*.py")), JUDGES):
        digest.update(file.read_bytes())
    return digest.digest()
