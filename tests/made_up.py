"""Ratings nobody gave."""

from __future__ import annotations

import numpy as np

from models.ratings import Catalogue, Ratings, RatingScale

WHOLE_STARS = RatingScale(low=1, high=5)


def made_up_ratings(
    n_users: int = 120, n_items: int = 60, per_user: int = 25, scale: RatingScale = WHOLE_STARS, seed: int = 1
) -> Ratings:
    """Ratings with user and item effects and two factors; the last three items of the catalogue are never rated."""
    rng = np.random.default_rng(seed)
    users = np.repeat(np.arange(n_users, dtype=np.int32), per_user)
    items = np.concatenate([rng.permutation(n_items - 3)[:per_user] for _ in range(n_users)]).astype(np.int32)
    U, V = rng.normal(size=(n_users, 2)), rng.normal(size=(n_items, 2))
    true = 0.6 + 0.1 * rng.normal(size=n_users)[users] + 0.15 * rng.normal(size=n_items)[items]
    true += 0.15 * (U[users] * V[items]).sum(axis=1)
    levels = scale.level_of(scale.low + scale.width * (true + 0.1 * rng.normal(size=len(users))))
    return ratings_of(users, items, scale.levels[levels], n_users, n_items, scale)


def ratings_of(users, items, values, n_users: int, n_items: int, scale: RatingScale = WHOLE_STARS) -> Ratings:
    features = np.zeros((n_items, 2), np.float32)
    features[::2, 0] = features[::3, 1] = 1
    catalogue = Catalogue(
        tuple(f"i{item}" for item in range(n_items)),
        tuple(f"Title {item}" for item in range(n_items)),
        features,
        ("even", "third"),
    )
    return Ratings(
        np.asarray(users, np.int32),
        np.asarray(items, np.int32),
        np.asarray(values, np.float32),
        tuple(f"user-{user}" for user in range(n_users)),
        catalogue,
        scale,
    )
