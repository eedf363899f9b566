"""Cross-validation: how ratings and users are dealt into folds, and how a fit is judged on them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from models.metrics import Scores, score
from models.privacy.keyed_hash import label_uniforms, pair_uniforms
from models.ratings import Mask, Ratings
from models.recommender import Fitted, Noise

Folds = NDArray[np.int16]


def deal_ratings(ratings: Ratings, n_folds: int) -> Folds:
    """A fold for every rating, equal in size up to one; shape (n,).

    The deal depends on who rated what and on nothing else, so that every recommender, and every run
    on the same ratings, is judged on the same folds. Of a batch only what is new to all releases is dealt;
    the rest is in no fold (-1), for their users to fold in.
    """
    labels = ratings.user_labels, ratings.catalogue.items
    order_by = pair_uniforms("folds", *labels, ratings.users, ratings.items)
    if ratings.batch is None:
        return _dealt(order_by, n_folds)
    folds = np.full(len(ratings), -1, np.int16)
    folds[ratings.batch.is_fresh] = _dealt(order_by[ratings.batch.is_fresh], n_folds)
    return folds


def deal_users(ratings: Ratings, n_folds: int) -> Folds:
    """A fold for every user, equal in size up to one; shape (n_users,)."""
    return _dealt(label_uniforms("visitors", ratings.user_labels), n_folds)


def _dealt(order_by: NDArray[np.float64], n_folds: int) -> Folds:
    folds = np.empty(len(order_by), np.int16)
    folds[np.argsort(order_by, kind="stable")] = np.arange(len(order_by)) % n_folds
    return folds


def client_scores(fitted: Fitted[Noise], train: Ratings, test: Ratings) -> Scores | None:
    """Users whose ratings were trained on fold in their own training ratings."""
    own = train.by_user
    U = fitted.factors.fold_in(own.start, own.other, own.values)
    return _scores(fitted, U, test)


def visitor_scores(fitted: Fitted[Noise], visitors: Ratings, is_test: Mask) -> Scores | None:
    """Users held out of training altogether fold in part of their ratings (the rest is the test)."""
    return client_scores(fitted, visitors.where(~is_test), visitors.where(is_test))


def paper_scores(fitted: Fitted[Noise], test: Ratings) -> Scores | None:
    """The recommender's own U, as its paper evaluates it; None where it has none."""
    return None if fitted.user_factors is None else _scores(fitted, fitted.user_factors, test)


def _scores(fitted: Fitted[Noise], U: NDArray[np.float64], test: Ratings) -> Scores | None:
    scale = test.scale
    predicted = fitted.factors.predict(U, test.users, test.items, low=scale.low, high=scale.high)
    return score(test.users, test.values, predicted, scale)


def summarise(folds: Sequence[Scores | None]) -> dict[str, float] | None:
    """Mean and standard deviation over folds of every headline metric: `rmse`, `rmse_sd`, `mae`, ...

    Folds without anything to compare are left out; None when all are.
    """
    lines = [scores.headline() for scores in folds if scores is not None]
    if not lines:
        return None
    summary = {}
    for name in lines[0]:
        values = np.array([line[name] for line in lines])
        values = values[np.isfinite(values)]
        if len(values):
            summary[name] = float(values.mean())
            summary[f"{name}_sd"] = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    return summary
