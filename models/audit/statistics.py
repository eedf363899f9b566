"""Statistics that tell releases of one data set from those of its neighbour, learned from examples of both.

Each learner takes releases of either side and returns a score that is larger where the first side is likelier. What
a score is worth is decided by other runs (models/audit/audit.py): a bad one shows less, and never too much.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from models.audit.runs import EXACT, Outputs
from models.ratings import Doubles

Score = Callable[[Outputs], Doubles]
Learner = Callable[[Outputs, Outputs], Score]

FARTHEST = 20.0
"""Numbers are cut at so many of their spreads from the middle: noise on top of a weak ridge has long tails."""

LEAST_SPREAD = 1e-6
"""Of a direction, relative to that of the numbers: below, it counts as exactly known."""

LEAST_SHARE = 5e-5
"""Of all variation, in one direction: below, it counts as none."""

TINY = 1e-300
"""Instead of nothing, where it is divided by or has its logarithm taken."""

WIDEST_ROW, ENOUGH_RUNS = 100, 4000
"""What a matrix to invert for every run leaves time and memory for."""


def one_number(first: Outputs, second: Outputs) -> Score:
    """The number of the release whose two distributions are farthest apart (Kolmogorov and Smirnov).

    Or what is left of a whole number after division by the step of its noise: noise that is coarser than the grid
    hides nothing of what is finer.
    """
    a, b = first.numbers, second.numbers
    numbers = [(column, step) for column in range(a.shape[1]) for step in (0.0, *_steps(a[:, column], b[:, column]))]
    distances = np.array(
        [_distances(_remainder(a[:, [at]], step), _remainder(b[:, [at]], step))[0] for at, step in numbers]
    )
    farthest = int(np.argmax(np.abs(distances)))
    (column, step), sign = numbers[farthest], -np.sign(distances[farthest]) or 1.0
    return lambda outputs: sign * _remainder(outputs.numbers[:, column], step)


def _steps(*sides: Doubles) -> list[float]:
    """Greatest common divisors, above one, of the differences between whole numbers of either side."""
    divisors = []
    for side in sides:
        if np.abs(side).max() < EXACT and (side == np.rint(side)).all():
            divisors.append(float(np.gcd.reduce((side - side[0]).astype(np.int64))))
    return sorted({divisor for divisor in divisors if divisor > 1})


def _remainder(numbers: Doubles, step: float) -> Doubles:
    return numbers % step if step else numbers


def one_value(first: Outputs, second: Outputs) -> Score:
    """Whether one number of the release is exactly what it seldom is by chance: noise that is sometimes left out."""
    both = np.concatenate([first.numbers, second.numbers])
    sides = np.repeat([1.0, -1.0], [len(first), len(second)])
    best, column, value, sign = 0.0, 0, np.nan, 1.0
    for at in range(both.shape[1]):
        values, which, counts = np.unique(both[:, at], return_inverse=True, return_counts=True)
        excess = np.bincount(which, sides) / np.sqrt(counts)
        most = int(np.argmax(np.abs(excess)))
        if abs(excess[most]) > best:
            best, column, value, sign = abs(excess[most]), at, values[most], np.sign(excess[most])
    return lambda outputs: sign * (outputs.numbers[:, column] == value)


def _distances(first: Doubles, second: Doubles) -> Doubles:
    """The largest difference, with its sign, of the distribution functions of each column."""
    both = np.concatenate([first, second])
    order = np.argsort(both, axis=0, kind="stable")
    step = np.where(order < len(first), 1 / len(first), -1 / len(second))
    gap = np.cumsum(step, axis=0)
    in_order = np.take_along_axis(both, order, axis=0)
    ends = np.ones(in_order.shape, np.bool_)
    ends[:-1] = in_order[1:] > in_order[:-1]  # equal values are one step
    gap = np.where(ends, gap, 0.0)
    at = np.argmax(np.abs(gap), axis=0)
    result: Doubles = np.take_along_axis(gap, at[None], axis=0)[0]
    return result


def linear(first: Outputs, second: Outputs) -> Score:
    """Fisher's linear discriminant of all numbers together."""
    scaled = _scaling(first, second)
    a, b = scaled(first), scaled(second)
    within = (np.cov(a.T, ddof=0) + np.cov(b.T, ddof=0)).reshape(a.shape[1], -1) / 2
    direction = np.linalg.solve(within + LEAST_SPREAD * np.eye(len(within)), a.mean(axis=0) - b.mean(axis=0))
    return lambda outputs: scaled(outputs) @ direction


def quadratic(first: Outputs, second: Outputs) -> Score:
    """Gaussian likelihood ratio, item by item: releases of different items carry independent noise."""
    scores = [
        _quadratic(first.columns(own), second.columns(own), own)
        for item in np.unique(first.items)
        if (own := first.items == item).any()
    ]
    return lambda outputs: np.sum([score(outputs) for score in scores], axis=0)


def _quadratic(first: Outputs, second: Outputs, own: NDArray[np.bool_]) -> Score:
    scaled = _scaling(first, second)
    log_density = [_log_density(scaled(side)) for side in (first, second)]

    def score(outputs: Outputs) -> Doubles:
        x = scaled(outputs.columns(own))
        return log_density[0](x) - log_density[1](x)

    return score


def _log_density(x: Doubles) -> Callable[[Doubles], Doubles]:
    """Of the Gaussian law fitted to the rows of `x`, up to a constant."""
    mean = x.mean(axis=0)
    covariance = np.cov(x.T, ddof=0).reshape(x.shape[1], -1) + LEAST_SPREAD * np.eye(x.shape[1])
    inverse, (_, log_determinant) = np.linalg.inv(covariance), np.linalg.slogdet(covariance)

    def log_density(at: Doubles) -> Doubles:
        difference = at - mean
        result: Doubles = -(log_determinant + np.einsum("ij,jk,ik->i", difference, inverse, difference)) / 2
        return result

    return log_density


def still_directions(first: Outputs, second: Outputs) -> Score:
    """Along which direction, the same for all items, the rows of V vary least under either side.

    Whoever alone rated some items holds all of them still along their own u, and along no other direction: on one
    side perhaps, or in one run of five where ratings are sampled. Nothing moves, and no item tells much by itself.
    """
    if not _comparable(first.items):
        return lambda outputs: np.zeros(len(outputs))
    _, directions = np.linalg.eigh(_stillness(first) - _stillness(second))
    still_in_second, still_in_first = directions[:, 0], directions[:, -1]

    def score(outputs: Outputs) -> Doubles:
        rows = _rows(outputs)
        along = [np.square(rows @ direction).mean(axis=1) for direction in (still_in_second, still_in_first)]
        result: Doubles = np.log(np.maximum(along[0], TINY)) - np.log(np.maximum(along[1], TINY))
        return result

    return score


def _comparable(items: NDArray[np.int64]) -> bool:
    """Whether every item has the same number of numbers, more than one and not too many to invert a matrix a run."""
    _, counts = np.unique(items[items >= 0], return_counts=True)
    return len(counts) > 0 and bool(1 < counts.min() == counts.max() <= WIDEST_ROW)


def _stillness(outputs: Outputs) -> Doubles:
    """Mean over runs of the inverse of each run's second moments of the rows of V; shape (d, d)."""
    rows = _rows(outputs)[:ENOUGH_RUNS]
    moments = np.swapaxes(rows, 1, 2) @ rows / rows.shape[1] + LEAST_SHARE * np.eye(rows.shape[2])
    result: Doubles = np.linalg.inv(moments).mean(axis=0)
    return result


def _rows(outputs: Outputs) -> Doubles:
    """V, each of its rows at norm 1; shape (n_runs, n_items, d)."""
    own = outputs.columns(outputs.items >= 0)
    in_order = own.numbers[:, np.argsort(own.items, kind="stable")]
    rows = in_order.reshape(len(outputs), len(np.unique(own.items)), -1)
    result: Doubles = rows / np.maximum(np.linalg.norm(rows, axis=2, keepdims=True), TINY)
    return result


def trees(first: Outputs, second: Outputs) -> Score:
    """Boosted trees on all numbers."""
    from sklearn.ensemble import HistGradientBoostingClassifier  # a second to import

    numbers = np.concatenate([first.numbers, second.numbers])
    sides = np.repeat([1, 0], [len(first), len(second)])
    forest = HistGradientBoostingClassifier(max_iter=50, max_leaf_nodes=8, early_stopping=False, random_state=0)
    forest.fit(numbers, sides)
    return lambda outputs: np.asarray(forest.decision_function(outputs.numbers), np.float64)


def seen_before(first: Outputs, second: Outputs) -> Score:
    """Whether this very release was seen among the examples of either side: noise that repeats itself."""
    seen = Counter(row.tobytes() for row in first.numbers)
    seen.subtract(row.tobytes() for row in second.numbers)
    return lambda outputs: np.array([seen[row.tobytes()] for row in outputs.numbers], np.float64)


LEARNERS: dict[str, Learner] = {
    "one number of the release": one_number,
    "one value of one number": one_value,
    "a linear discriminant": linear,
    "a quadratic discriminant": quadratic,
    "directions in which nothing moves": still_directions,
    "boosted trees": trees,
    "releases seen before": seen_before,
}

QUICK = tuple(
    name for name in LEARNERS if name not in ("one value of one number", "boosted trees", "releases seen before")
)


def _scaling(first: Outputs, second: Outputs) -> Callable[[Outputs], Doubles]:
    """Numbers less their median over their spread, cut at FARTHEST."""
    both = np.concatenate([first.numbers, second.numbers])
    middle = np.median(both, axis=0)
    spread = np.median(np.abs(both - middle), axis=0)
    spread = np.where(spread > 0, spread, np.abs(both - middle).max(axis=0))
    spread = np.where(spread > 0, spread, 1.0)

    def scaled(outputs: Outputs) -> Doubles:
        result: Doubles = np.clip((outputs.numbers - middle) / spread, -FARTHEST, FARTHEST)
        return result

    return scaled
