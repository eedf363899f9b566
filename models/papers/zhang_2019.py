"""The figures of Zhang, Liu, Chen and Zhong, Knowledge-Based Systems 183 (2019) 104864, section 5, Tables 1 to 4."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from models.factorization.dp_pmf import DPPMF
from models.factorization.pdp_pmf import PDPPMF
from models.histogram.pdp_histogram import PDPHistogram
from models.papers.experiment import AS_PUBLISHED, EXACT, HISTOGRAM, Cell, Experiment, Panel, Statement
from models.privacy.specification import Policy, PrivacySpecification

SCHEMES = {"PDP-PMF1": 0.54, "PDP-PMF2": 0.37, "PDP-PMF3": 0.20}
"""Share of conservative ratings; .37 are moderate and the rest is liberal."""
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
MODERATE_LEVELS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
UNIFORM = 0.1
"""DP-PMF's epsilon, the least of the policy's."""
BASELINE = "DP-PMF"


def _personalised(series: str, x: float | None, policy: Policy, threshold: float | None = None) -> Iterator[Cell]:
    for variant, solver in ((AS_PUBLISHED, "alg2"), (EXACT, "exact")):
        recommender = PDPPMF(solver=solver, threshold=threshold or "mean")
        specification = PrivacySpecification(policy=policy, relation=recommender.relation)
        yield Cell(variant, series, x, recommender, specification)
    # Features are public and no part of the papers' recommenders: without them the three compare alike.
    histogram = PDPHistogram(threshold=threshold or "max", item_features=False)
    yield Cell(HISTOGRAM, series, x, histogram, PrivacySpecification(policy=policy))


def _baseline() -> Iterator[Cell]:
    for variant, solver in ((AS_PUBLISHED, "alg2"), (EXACT, "exact")):
        recommender = DPPMF(solver=solver)
        yield Cell(
            variant, BASELINE, None, recommender, PrivacySpecification(epsilon=UNIFORM, relation="replace_value")
        )
    yield Cell(HISTOGRAM, BASELINE, None, PDPHistogram(item_features=False), PrivacySpecification(epsilon=UNIFORM))


def _rmse(panel: Panel, series: str) -> list[float]:
    return [panel[series][x].rmse for x in _at(panel, series)]


def _at(panel: Panel, series: str) -> list[float]:
    return sorted(x for x in panel[series] if x is not None)


def _span(values: list[float]) -> str:
    return f"{min(values):.3f} to {max(values):.3f}"


def _growth(panel: Panel) -> str:
    x, rmse = _at(panel, "PDP-PMF"), _rmse(panel, "PDP-PMF")
    straight = f"; correlation with a line {np.corrcoef(x, rmse)[0, 1]:.3f}" if np.ptp(rmse) > 0 else ""
    return f"{rmse[-1] - rmse[0]:+.3f} over the range{straight}"


def _figure_2() -> Experiment:
    cells = [
        cell for share in SHARES for cell in _personalised("PDP-PMF", share, Policy(conservative=share, moderate=0.37))
    ]
    return Experiment(
        "zhang-fig2",
        "Figure 2: RMSE against the share of conservative ratings (Table 1)",
        "share of conservative ratings f_c",
        ("rmse",),
        (*cells, *_baseline()),
        (
            Statement("PDP-PMF's RMSE is around 1.0", lambda p: _span(_rmse(p, "PDP-PMF"))),
            Statement("it grows with f_c, roughly linearly", _growth),
            Statement("DP-PMF's is much larger (and flat)", lambda p: f"{p[BASELINE][None].rmse:.3f}"),
        ),
    )


def _gap(panel: Panel) -> str:
    curves = np.array([panel[series][None].cdf for series in SCHEMES])
    return f"{100 * np.ptp(curves, axis=0).max():.1f} percentage points apart at most"


def _figure_3() -> Experiment:
    cells = [
        cell
        for series, f in SCHEMES.items()
        for cell in _personalised(series, None, Policy(conservative=f, moderate=0.37))
    ]
    return Experiment(
        "zhang-fig3",
        "Figure 3: distribution of errors by policy (Table 2)",
        "",
        ("cdf",),
        (*cells, *_baseline()),
        (
            Statement(
                "about 70 % of PDP-PMF's errors are at most 1",
                lambda p: ", ".join(f"{p[series][None].within[0]:.1%}" for series in SCHEMES),
            ),
            Statement("the three PDP-PMF curves overlap", _gap),
            Statement("DP-PMF lies far below", lambda p: f"{p[BASELINE][None].within[0]:.1%} at most 1"),
        ),
    )


def _figure_4() -> Experiment:
    cells = [
        cell
        for series, f in SCHEMES.items()
        for level in MODERATE_LEVELS
        for cell in _personalised(series, level, Policy(conservative=f, moderate=0.37, epsilon_moderate=level))
    ]
    return Experiment(
        "zhang-fig4",
        "Figure 4: RMSE against the moderate level (Table 3)",
        "moderate level ε_m",
        ("rmse",),
        (*cells, *_baseline()),
        (
            Statement(
                "PDP-PMF's RMSE tends into .94 to .97",
                lambda p: f"at ε_m = .9: {_span([_rmse(p, series)[-1] for series in SCHEMES])}",
            ),
            Statement(
                "PDP-PMF3 is almost flat",
                lambda p: "; ".join(f"{series} moves by {np.ptp(_rmse(p, series)):.3f}" for series in SCHEMES),
            ),
        ),
    )


def _within(panel: Panel) -> dict[float, np.ndarray]:
    return {x: 100 * np.array(panel["PDP-PMF"][x].within) for x in _at(panel, "PDP-PMF")}


def _best_threshold(panel: Panel) -> str:
    within = _within(panel)
    return ", ".join(f"{max(within, key=lambda x: within[x][at]):g}" for at in range(3))


def _loss_at_one(panel: Panel) -> str:
    within = _within(panel)
    return ", ".join(f"{difference:+.1f}" for difference in within[0.7] - within[1.0])


def _spread_above(panel: Panel) -> str:
    above = np.array([values for x, values in _within(panel).items() if x > 0.4])
    return ", ".join(f"{spread:.1f}" for spread in np.ptp(above, axis=0))


def _figure_5() -> Experiment:
    policy = Policy(conservative=0.60, moderate=0.35, epsilon_moderate=0.4)
    return Experiment(
        "zhang-fig5",
        "Figure 5: the threshold of the sampling (Table 4)",
        "threshold t",
        ("cdf", "pet"),
        tuple(cell for t in THRESHOLDS for cell in _personalised("PDP-PMF", t, policy, threshold=t)),
        (
            Statement("the best threshold is about .7 (errors within 1, 1.5, 2)", _best_threshold),
            Statement("t = .7 gains about 2.2 percentage points over t = 1 on each", _loss_at_one),
            Statement("little variation above t = .4 (percentage points)", _spread_above),
        ),
        cdf_at=(0.6, 0.7, 0.8, 1.0),
    )


EXPERIMENTS = {experiment.name: experiment for experiment in (_figure_2(), _figure_3(), _figure_4(), _figure_5())}
