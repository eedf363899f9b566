"""How good predictions are. All figures are of exact ratings and therefore stay inside."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.ratings import Doubles, Floats, Ints, RatingScale

CDF_POINTS = 101


@dataclass(frozen=True)
class Scores:
    """Accuracy on one set of test ratings.

    Attributes:
      rmse, mae: rating units.
      within: fraction of errors of at most .5, 1, 1.5 and 2 rating units.
      ndcg_10: mean over users with at least two test items; NaN when there is none.
      cdf: shape (CDF_POINTS,), fraction of errors at most x, for x from 0 to the width of the scale.
    """

    rmse: float
    mae: float
    within: tuple[float, float, float, float]
    ndcg_10: float
    cdf: tuple[float, ...]

    def headline(self) -> dict[str, float]:
        names = ("within_half", "within_1", "within_1_5", "within_2")
        return {
            "rmse": self.rmse,
            "mae": self.mae,
            **dict(zip(names, self.within, strict=True)),
            "ndcg_10": self.ndcg_10,
        }


def score(users: Ints, values: Floats, predicted: Doubles, scale: RatingScale) -> Scores | None:
    """Compare predictions with ratings; all of shape (n,). None when there is nothing to compare."""
    if len(values) == 0:
        return None
    error = np.abs(predicted - values)
    return Scores(
        rmse=float(np.sqrt((error**2).mean())),
        mae=float(error.mean()),
        within=tuple(fraction_within(error, (0.5, 1.0, 1.5, 2.0))),  # type: ignore[arg-type]
        ndcg_10=ndcg(users, values, predicted, n=10),
        cdf=tuple(fraction_within(error, np.linspace(0, scale.width, CDF_POINTS))),
    )


def fraction_within(error: Doubles, bounds: Doubles | tuple[float, ...]) -> list[float]:
    """Fraction of `error` at most each bound; a hair of tolerance, so that an error of 1 counts as within 1."""
    ordered = np.sort(error)
    return [float(f) for f in np.searchsorted(ordered, np.asarray(bounds) + 1e-9, side="right") / len(ordered)]


def ndcg(users: Ints, values: Floats, predicted: Doubles, *, n: int) -> float:
    """Normalised discounted cumulative gain at n, gain 2^rating - 1 (Järvelin and Kekäläinen, TOIS 2002).

    Per user over that user's test items, averaged over users with at least two of them and any gain to
    be had. Items with equal predictions share the mean of the gains they would get; a rating below zero
    gains nothing.
    """
    gain = np.exp2(np.maximum(np.asarray(values, dtype=np.float64), 0)) - 1
    reached = _discounted(users, _mean_of_ties(users, predicted, gain), predicted, n)
    ideal = _discounted(users, gain, gain, n)
    counted = (np.bincount(users, minlength=len(reached)) >= 2) & (ideal > 0)
    return float((reached[counted] / ideal[counted]).mean()) if counted.any() else float("nan")


def _discounted(users: Ints, gain: Doubles, by: Doubles, n: int) -> Doubles:
    """Per user, the sum of gain / log2(rank + 1) over the n items highest in `by`; shape (max user + 1,)."""
    order = np.lexsort((-by, users))
    ordered_users = users[order]
    first = np.searchsorted(ordered_users, ordered_users, side="left")
    rank = np.arange(len(order)) - first
    worth = np.where(rank < n, gain[order] / np.log2(rank + 2), 0.0)
    total: Doubles = np.bincount(ordered_users, worth).astype(np.float64)
    return total


def _mean_of_ties(users: Ints, predicted: Doubles, gain: Doubles) -> Doubles:
    order = np.lexsort((predicted, users))
    u, p = users[order], predicted[order]
    group = np.concatenate([[0], np.cumsum((np.diff(u) != 0) | (np.diff(p) != 0))])
    mean = np.bincount(group, gain[order]) / np.bincount(group)
    result = np.empty_like(gain)
    result[order] = mean[group]
    return result
