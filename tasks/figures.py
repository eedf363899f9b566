"""Figures. Those of errors stay inside; `release_figure` shows what is public anyway."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from models.metrics import CDF_POINTS
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
