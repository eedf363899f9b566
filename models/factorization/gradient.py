"""Gradient descent on the squared error of ratings, in the two readings of the first paper's section 3.

`descend` has the scaling of Salakhutdinov's public PMF program, whose constants (learning rate 50,
regulariser .01, momentum .8, 9 batches) the paper prints: the gradient of a batch is summed over its
ratings, the regulariser added once per rating, and divided by the size of the batch.
`descend_literally` is the paper's formula as it stands, on all ratings at once.

Both were written for scales that are four wide: ratings are measured in quarters of their scale's width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from models.errors import SpecError
from models.kernels import kernel
from models.ratings import Doubles, Floats, Ints, Ratings, RatingScale

LEAST_BATCH = 10_000
"""A batch counts as at least so large: the learning rate is for batches of 100,000 and diverges on small ones."""

BOUNDED = 1e100
"""Factors beyond are on their way to infinity."""

Batch = NDArray[np.int64]
Perturb = Callable[[Doubles], Doubles]


@dataclass(frozen=True)
class Pace:
    """How fast to descend; `n_batches` says how many steps an epoch has, `batch_share` what the sum is divided by."""

    n_epochs: int
    learning_rate: float
    momentum: float
    precision: float
    n_batches: int
    batch_share: int
    """The gradient is divided by the number of ratings over this."""


@kernel
def _add_gradients(
    batch: Batch,
    users: Ints,
    items: Ints,
    values: Doubles,
    U: Doubles,
    V: Doubles,
    precision: float,
    gradient_U: Doubles,
    gradient_V: Doubles,
) -> None:
    """Sum 2 e v + precision u, and its like, over the ratings at `batch`; a gradient without rows is left out."""
    d = V.shape[1]
    learns_U = len(gradient_U) > 0
    for at in batch:
        u, v = U[users[at]], V[items[at]]
        twice_error = -values[at]
        for p in range(d):
            twice_error += u[p] * v[p]
        twice_error *= 2.0
        to_v = gradient_V[items[at]]
        for p in range(d):
            to_v[p] += twice_error * u[p] + precision * v[p]
        if learns_U:
            to_u = gradient_U[users[at]]
            for p in range(d):
                to_u[p] += twice_error * v[p] + precision * u[p]


@kernel
def _step(factors: Doubles, velocity: Doubles, gradient: Doubles, rate: float, momentum: float) -> None:
    """Move `factors` and empty `gradient`; all of the same shape."""
    for row in range(len(factors)):
        for p in range(factors.shape[1]):
            velocity[row, p] = momentum * velocity[row, p] + rate * gradient[row, p]
            factors[row, p] -= velocity[row, p]
            gradient[row, p] = 0.0


def descend(
    ratings: Ratings,
    U: Doubles,
    V: Doubles,
    *,
    centre: float,
    pace: Pace,
    clips_U: bool = False,
    learns_U: bool = True,
    perturb: Perturb | None = None,
) -> None:
    """Move V, and U unless told otherwise, in place.

    Args:
      U, V: shapes (n_users, d) and (n_items, d); U.V is in `unit_of` the scale.
      centre: subtracted from every rating, in rating units.
      clips_U: whether the rows of U are shrunk to norm 1 after every epoch.
      perturb: applied to the summed gradient of V, before it is divided, on every step.
    Raises:
      SpecError: it diverged.
    """
    users = np.repeat(np.arange(ratings.n_users, dtype=np.int32), ratings.by_user.counts)
    items, values = ratings.by_user.other, _measured(ratings.by_user.values, centre, ratings)
    gradient_U, gradient_V = np.zeros_like(U if learns_U else U[:0]), np.zeros_like(V)
    velocity_U, velocity_V = np.zeros_like(gradient_U), np.zeros_like(V)
    rate = pace.learning_rate / max(len(ratings) / pace.batch_share, LEAST_BATCH)
    dealer = np.random.default_rng(0)  # the deal depends on no rating
    for _ in range(pace.n_epochs):
        for batch in _batches(len(ratings), pace.n_batches, dealer):
            _add_gradients(batch, users, items, values, U, V, pace.precision, gradient_U, gradient_V)
            if perturb is not None:
                gradient_V = perturb(gradient_V)
            _step(V, velocity_V, gradient_V, rate, pace.momentum)
            _step(U[: len(gradient_U)], velocity_U, gradient_U, rate, pace.momentum)
        _require_bounded(U, V)
        if clips_U:
            clip_rows(U)


def descend_literally(
    ratings: Ratings,
    U: Doubles,
    V: Doubles,
    *,
    centre: float,
    n_epochs: int,
    learning_rate: float,
    precision: float,
    clips_U: bool = False,
) -> None:
    """U and V both minus `learning_rate` times the gradient of E, on all ratings at once; in place.

    In units of `unit_of` the scale, E = 1/2 sum (r - centre - u.v)^2 + precision/2 (sum |u|^2 + sum |v|^2): Zhang et
    al., section 3.1.

    Raises:
      SpecError: it diverged.
    """
    gradients, still = (np.zeros_like(U), np.zeros_like(V)), (np.zeros_like(U), np.zeros_like(V))
    everything, values = np.arange(len(ratings)), _measured(ratings.values, centre, ratings)
    for _ in range(n_epochs):
        _add_gradients(everything, ratings.users, ratings.items, values, U, V, 0.0, *gradients)
        for factors, gradient, velocity in zip((U, V), gradients, still, strict=True):
            gradient += 2 * precision * factors
            _step(factors, velocity, gradient, learning_rate / 2, 0.0)  # the kernel's gradient is of twice E
        _require_bounded(U, V)
        if clips_U:
            clip_rows(U)


def unit_of(scale: RatingScale) -> float:
    """What gradient descent takes for one, in rating units."""
    return scale.width / 4


def _measured(values: Floats, centre: float, ratings: Ratings) -> Doubles:
    return (values.astype(np.float64) - centre) / unit_of(ratings.scale)


def clip_rows(factors: Doubles) -> None:
    """Shrink rows to L2 norm at most 1, in place."""
    factors /= np.maximum(np.linalg.norm(factors, axis=1, keepdims=True), 1.0)


def _batches(n: int, n_batches: int, dealer: np.random.Generator) -> list[Batch]:
    """Each rating in one of the batches at random; within a batch the ratings keep their order."""
    batch_of = dealer.integers(0, n_batches, n, dtype=np.uint16)
    edges = np.concatenate([[0], np.cumsum(np.bincount(batch_of, minlength=n_batches))])
    order = np.argsort(batch_of, kind="stable")
    return [order[first:last] for first, last in pairwise(edges)]


def _require_bounded(*factors: Doubles) -> None:
    if not all(np.abs(rows).max(initial=0.0) < BOUNDED for rows in factors):  # NaN is not below anything
        raise SpecError("gradient descent diverged: this learning_rate is too large for these ratings. Lower it.")
