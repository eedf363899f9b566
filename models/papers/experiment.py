"""An experiment of a paper: which cells to compute, how the paper draws them, and what it says of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from models.privacy.specification import PrivacySpecification
from models.recommender import Recommender

AS_PUBLISHED, EXACT, HISTOGRAM = "as published (broken)", "exact", "pdp-histogram"
VARIANTS = (AS_PUBLISHED, EXACT, HISTOGRAM)
"""What stands beside each other: the paper's algorithm, the mechanism that its theorem is about, and a proven one."""


@dataclass(frozen=True)
class Cell:
    """One recommender at one specification: a point of a curve, or a curve of errors."""

    variant: str
    series: str
    x: float | None
    recommender: Recommender
    specification: PrivacySpecification

    @property
    def label(self) -> str:
        at = "" if self.x is None else f" at {self.x:g}"
        return f"{self.series}{at}, {self.variant}"


@dataclass(frozen=True)
class Outcome:
    """A cell's scores, mean over folds; errors in rating units.

    `cdf` is the fraction of errors at most x on models.metrics' grid; `within` that at 1, 1.5 and 2.
    """

    rmse: float
    rmse_sd: float
    within: tuple[float, float, float]
    cdf: tuple[float, ...]


Curve = Mapping[float | None, Outcome]
"""By x; a series that does not depend on x has the one key None."""
Panel = Mapping[str, Curve]
"""By series: what one variant made of the experiment."""


@dataclass(frozen=True)
class Statement:
    """What the paper says, and the figure that tells whether it is so."""

    text: str
    measure: Callable[[Panel], str]


@dataclass(frozen=True)
class Experiment:
    """One figure.

    Args:
      kinds: what its parts show: `rmse` or `pet` against x, or the `cdf` of errors by series (and x).
      cdf_at: which x have a curve of errors; all when empty.
    """

    name: str
    title: str
    x_label: str
    kinds: tuple[Literal["rmse", "pet", "cdf"], ...]
    cells: tuple[Cell, ...]
    statements: tuple[Statement, ...]
    cdf_at: tuple[float, ...] = ()


def panels(outcomes: Mapping[Cell, Outcome]) -> dict[str, dict[str, dict[float | None, Outcome]]]:
    """Outcomes by variant, series and x."""
    sorted_: dict[str, dict[str, dict[float | None, Outcome]]] = {}
    for cell, outcome in outcomes.items():
        sorted_.setdefault(cell.variant, {}).setdefault(cell.series, {})[cell.x] = outcome
    return sorted_
