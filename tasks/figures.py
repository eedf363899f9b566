"""Figures. Those of errors stay inside; `release_figure` shows what is public anyway."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from models.metrics import CDF_POINTS
from models.papers.experiment import HISTOGRAM, VARIANTS, Cell, Experiment, Outcome, Panel, panels
from models.release import Release
from tasks.training import Evaluation


def error_cdf_figure(evaluations: Mapping[str, Evaluation], scale_width: float) -> Figure:
    """The fraction of errors at most x, by recommender: mean over folds of the client evaluation."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    x = np.linspace(0, scale_width, CDF_POINTS)
    styles = ("-", "--", "-.", ":")
    for at, (label, evaluation) in enumerate(evaluations.items()):
        curves = [fold.client.cdf for fold in evaluation.folds if fold.client is not None]
        if curves:
            axes.plot(x, np.mean(curves, axis=0), styles[at % len(styles)], label=label, linewidth=1.8)
    axes.set(xlabel="absolute error x (rating units)", ylabel="fraction of test ratings with error ≤ x")
    axes.set(xlim=(0, scale_width), ylim=(0, 1.01), title="How far off are the predictions?")
    axes.grid(alpha=0.3)
    if axes.lines:  # a batch may have nothing new to be judged on
        axes.legend(loc="lower right")
    return figure


def rmse_figure(evaluations: Mapping[str, Evaluation]) -> Figure:
    """RMSE by recommender: mean over folds, one standard deviation either way, and every fold."""
    figure = Figure(figsize=(7, 1.6 + 0.55 * len(evaluations)), layout="constrained")
    axes = figure.subplots()
    for at, evaluation in enumerate(evaluations.values()):
        summary = evaluation.summaries["client"]
        if summary:
            values = [fold.client.rmse for fold in evaluation.folds if fold.client is not None]
            mean = summary["rmse"]
            axes.plot(values, [at] * len(values), "o", color="0.75", markersize=4)
            axes.errorbar(mean, at, xerr=summary["rmse_sd"], fmt="D", color="C0", capsize=4)
            axes.annotate(f"{mean:.4f}", (mean, at), (0, 9), textcoords="offset points", ha="center")
    axes.set_yticks(range(len(evaluations)), list(evaluations))
    axes.set(ylim=(len(evaluations) - 0.4, -0.7), xlabel="RMSE of held-out ratings (rating units); lower is better")
    axes.set_title("Mean ± standard deviation over folds (grey: single folds)", fontsize=10)
    axes.grid(axis="x", alpha=0.3)
    return figure


def experiment_figure(experiment: Experiment, outcomes: Mapping[Cell, Outcome], scale_width: float) -> Figure:
    """A row per kind of curve that the paper draws, a column per variant; all of a row on one scale."""
    shown = panels(outcomes)
    n_rows = len(experiment.kinds)
    figure = Figure(figsize=(13, 0.6 + 3.9 * n_rows), layout="constrained")
    grid = figure.subplots(n_rows, len(VARIANTS), sharey="row", squeeze=False)
    for row, kind in enumerate(experiment.kinds):
        for axes, variant in zip(grid[row], VARIANTS, strict=True):
            panel = shown[variant]
            if variant == HISTOGRAM:  # it is neither of the papers' recommenders
                panel = {f"at {series}'s specification": curve for series, curve in panel.items()}
            DRAW[kind](axes, experiment, panel, scale_width)
            axes.grid(alpha=0.3)
            axes.legend(fontsize=8)
            axes.set_title(variant, fontsize=10)
    figure.suptitle(experiment.title, fontsize=11)
    return figure


def _draw_rmse(axes: Axes, experiment: Experiment, panel: Panel, scale_width: float) -> None:
    for at, (series, curve) in enumerate(panel.items()):
        points = sorted((x, outcome) for x, outcome in curve.items() if x is not None)
        if points:
            rmse, spread = [outcome.rmse for _, outcome in points], [outcome.rmse_sd for _, outcome in points]
            axes.errorbar([x for x, _ in points], rmse, yerr=spread, fmt=f"{MARKERS[at]}-", capsize=2, label=series)
        else:
            axes.axhline(curve[None].rmse, color="0.3", linestyle="--", label=series)
    axes.set(xlabel=experiment.x_label, ylabel="RMSE (rating units)")


def _draw_cdf(axes: Axes, experiment: Experiment, panel: Panel, scale_width: float) -> None:
    x = np.linspace(0, scale_width, CDF_POINTS)
    for series, curve in panel.items():
        for at, outcome in curve.items():
            if at is None or not experiment.cdf_at or at in experiment.cdf_at:
                axes.plot(x, outcome.cdf, label=series if at is None else f"t = {at:g}", linewidth=1.5)
    axes.set(xlabel="absolute error (rating units)", ylabel="fraction of errors", xlim=(0, scale_width), ylim=(0, 1.01))


def _draw_within(axes: Axes, experiment: Experiment, panel: Panel, scale_width: float) -> None:
    for curve in panel.values():
        points = sorted((x, outcome) for x, outcome in curve.items() if x is not None)
        for at, bound in enumerate(("1", "1.5", "2")):
            values = [outcome.within[at] for _, outcome in points]
            axes.plot([x for x, _ in points], values, f"{MARKERS[at]}-", label=f"errors of at most {bound}")
    axes.set(xlabel=experiment.x_label, ylabel="fraction of errors")


DRAW = {"rmse": _draw_rmse, "cdf": _draw_cdf, "pet": _draw_within}
MARKERS = "os^Dv"


def release_figure(release: Release) -> Figure:
    """The spread of the released item offsets: post-processing of the release, hence public."""
    figure = Figure(figsize=(6.5, 3.5), layout="constrained")
    axes = figure.subplots()
    axes.hist(release.factors.offset, bins=60, range=(release.low, release.high), color="C0")
    axes.set(xlabel="released item offset (predicted rating of a user without ratings)", ylabel="items")
    axes.set_title("What the release says about the items")
    return figure


def save_figures(figures: Mapping[str, Figure], folder: Path) -> list[Path]:
    """Write each as NAME.png into `folder`, which exists."""
    paths = []
    for name, figure in figures.items():
        paths.append(folder / f"{name}.png")
        figure.savefig(paths[-1], dpi=120)
    return paths
