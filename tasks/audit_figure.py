"""What an audit showed against what is claimed: of made-up ratings, hence public."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.special import ndtr, ndtri

from models.audit.audit import Audited
from models.audit.claim import Claim
from models.ratings import Doubles

MOST_POINTS = 30


def audit_figure(label: str, audited: Audited, epsilon_shown: float) -> Figure:
    """Left: epsilon as claimed and as shown. Right: the errors of whoever tells the neighbours apart.

    Args:
      epsilon_shown: at the claim's delta.
    """
    figure = Figure(figsize=(9.5, 4.5), layout="constrained")
    bars, curve = figure.subplots(1, 2, width_ratios=(1, 1.5))
    colour = "C3" if audited.exceeded else "C0"
    _draw_bars(bars, audited, epsilon_shown, colour)
    _draw_errors(curve, audited, colour)
    verdict = "exceeds its claim" if audited.exceeded else "within its claim"
    figure.suptitle(f"{label}, {audited.relation.replace('_', ' ')}: {verdict} in {audited.n_runs:,} runs", fontsize=11)
    return figure


def _draw_bars(axes: Axes, audited: Audited, epsilon_shown: float, colour: str) -> None:
    """What is claimed is an upper bound, and what is shown a lower one: the truth of this pair is between them."""
    axes.bar(["claimed\n(at most)", f"shown\n(at least, {audited.confidence:.0%})"],
             [audited.claim.epsilon, epsilon_shown], color=["0.75", colour], width=0.55)  # fmt: skip
    for at, epsilon in enumerate((audited.claim.epsilon, epsilon_shown)):
        axes.annotate(f"{epsilon:.3g}", (at, epsilon), (0, 4), textcoords="offset points", ha="center")
    axes.axhline(audited.claim.epsilon, color="0.4", linestyle="--", linewidth=1)
    axes.margins(y=0.12)
    axes.set(ylabel=f"ε at δ={audited.claim.delta:g}" if audited.claim.delta else "ε")


def _draw_errors(axes: Axes, audited: Audited, colour: str) -> None:
    false_alarms = np.linspace(0, 1, 501)
    least = least_misses(audited.claim, false_alarms)
    axes.fill_between(false_alarms, 0, least, color="0.85", label="claimed to be impossible")
    axes.plot([0, 1], [1, 0], ":", color="0.4", label="guessing")
    shown = audited.shown
    every = max(len(shown.misses) // MOST_POINTS, 1)
    x, y = shown.false_alarms[::every], shown.misses[::every]
    across, up = (2 * np.sqrt(rate * (1 - rate) / (audited.n_runs / 4)) for rate in (x, y))
    measured = f"measured, ± 2 standard errors:\n{shown.statistic}"
    axes.errorbar(x, y, up, across, fmt=".", color=colour, elinewidth=0.8, markersize=6, label=measured)
    axes.set(xlabel="false alarms: share of D′ taken for D", ylabel="misses: share of D taken for D′")
    axes.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), aspect="equal")  # who errs never is on an axis
    axes.grid(alpha=0.3)
    axes.legend(loc="upper right", fontsize=8)


def least_misses(claim: Claim, false_alarms: Doubles) -> Doubles:
    """The fewest misses that the claim leaves at each share of false alarms; shape as `false_alarms`.

    (epsilon, delta): Wasserman and Zhou, JASA 2010, Theorem 2.4; Gaussian: Dong, Roth and Su, JRSS B 2022, (6).
    """
    growth = np.exp(claim.epsilon)
    of_epsilon = np.maximum(1 - claim.delta - growth * false_alarms, (1 - claim.delta - false_alarms) / growth)
    least: Doubles = np.maximum(of_epsilon, 0.0)
    if claim.gaussian is not None:
        least = np.maximum(least, ndtr(-ndtri(false_alarms) - claim.gaussian))
    return least
