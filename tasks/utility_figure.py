"""RMSE against epsilon, of all that was tried on a source so far, or of what was released of it and paid for.

Read from MLflow's runs. What evaluations show stays inside; of releases only metrics that were paid for are drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter

from models.privacy.guarantee import WORST_FIRST
from tasks.views import LATEST

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

MOST_RUNS = 200
OF_NO_MATTER = ("privacy.epsilon_spent", "privacy.metrics.", "folds")
"""Parameters in which evaluations may differ that are alike."""
BATCH = "batch"
"""Parameter of the evaluation of a batch, which predicts what is new alone and is no other's like."""
MOST_SERIES = 10
"""That have a colour of their own; of more, all others are grey."""
MOST_NUMBERS = 12
"""Points of a panel that have their RMSE written beside them."""
MOST_TICKS = 8
"""Epsilons that are written under the axis, each; of more, powers of ten."""
MARKERS = {"proven": "o", "conditional": "^", "broken": "X"}
BASELINES: tuple[Literal["--", "-.", ":"], ...] = ("--", "-.", ":")

UTILITY = "privacy_utility"
"""Name of the picture."""


class Kind(NamedTuple):
    """Whose RMSE it is, and at what epsilon."""

    rmse: str
    epsilon: str


EVALUATED = Kind("RMSE over folds (± sd)", "ε of a release")
RELEASED = Kind("private RMSE of releases (95% interval)", "ε of a release and its metrics")


@dataclass(frozen=True)
class Point:
    """What one recommender with one specification costs and is worth.

    Attributes:
      series: the recommender, and the settings by which it differs from others here.
      epsilon: the most that a release charges anybody; None where it has no privacy.
      least: the least that one is charged, by declaration; as `epsilon` where all are alike.
      rmse, low, high: and its spread, rating units.
    """

    series: str
    epsilon: float | None
    least: float
    unit: str
    verdict: str
    rmse: float
    low: float
    high: float

    @property
    def is_personal(self) -> bool:
        return self.epsilon is not None and self.least < self.epsilon


def newest_evaluations(client: MlflowClient, experiment: str) -> list[Run]:
    """The newest of each recommender with each specification and settings; the others lose their tag LATEST."""
    runs = client.search_runs([experiment], f"tags.{LATEST} = 'yes'", max_results=MOST_RUNS)
    found: dict[frozenset[tuple[str, str]], Run] = {}
    for run in runs:  # newest first
        alike = frozenset(item for item in run.data.params.items() if not item[0].startswith(OF_NO_MATTER))
        if found.setdefault(alike, run) is not run:
            client.delete_tag(run.info.run_id, LATEST)
    return list(found.values())


def evaluated_points(runs: Sequence[Run]) -> list[Point]:
    points = []
    for run, series in zip(runs, _series_names(runs), strict=True):
        rmse, spread = run.data.metrics["cv_rmse"], run.data.metrics.get("cv_rmse_sd", 0.0)
        points.append(_point(run, series, run.data.metrics.get("privacy.epsilon"), rmse, rmse - spread, rmse + spread))
    return points


def released_points(client: MlflowClient, experiment: str) -> list[Point]:
    """Every release whose RMSE was paid for, at what it cost together with it."""
    runs = client.search_runs([experiment], "metrics.private_rmse >= 0", max_results=MOST_RUNS)
    points = []
    for run, series in zip(runs, _series_names(runs), strict=True):
        told = run.data.metrics
        spent, rmse = told["privacy.epsilon_spent"], told["private_rmse"]
        points.append(_point(run, series, spent, rmse, told["private_rmse_low"], told["private_rmse_high"]))
    return points


def _point(run: Run, series: str, epsilon: float | None, rmse: float, low: float, high: float) -> Point:
    least = _least(_param(run, "privacy.epsilon"), epsilon or 0.0)
    return Point(series, epsilon, least, _param(run, "privacy.unit"), _param(run, "privacy.verdict"), rmse, low, high)


def _least(told: str, epsilon: float) -> float:
    """Of `0.1..1` and `≤1`, as a guarantee sums itself up."""
    if told.startswith("≤"):
        return 0.0
    least, dots, _ = told.partition("..")
    return float(least) if dots else epsilon


def _series_names(runs: Sequence[Run]) -> list[str]:
    """The recommender's name, with settings in which runs of it differ, and the relation where there are several."""
    values: dict[tuple[str, str], set[str]] = {}
    for run in runs:
        for name, value in _settings(run).items():
            values.setdefault((_param(run, "recommender"), name), set()).add(value)
    relations = {_param(run, "privacy.relation") for run in runs} - {"none"}

    def name_of(run: Run) -> str:
        recommender, relation = _param(run, "recommender"), _param(run, "privacy.relation")
        names = [f"{key}={value}" for key, value in _settings(run).items() if len(values[(recommender, key)]) > 1]
        of = [f"({relation.replace('_', ' ')})"] if len(relations) > 1 and relation in relations else []
        return " ".join([recommender, *names, *of, *(["in batches"] if BATCH in run.data.params else [])])

    return [name_of(run) for run in runs]


def _param(run: Run, name: str) -> str:
    return str(run.data.params.get(name, "none"))


def _settings(run: Run) -> dict[str, str]:
    prefix = "setting."
    return {name.removeprefix(prefix): text for name, text in run.data.params.items() if name.startswith(prefix)}


def utility_figure(source: str, points: Sequence[Point], kind: Kind) -> Figure:
    """Of one point or more: a panel for each unit; recommenders by colour, verdicts by marker, no privacy as lines."""
    private = [point for point in points if point.epsilon is not None]
    units = sorted({point.unit for point in private}) or ["rating"]
    figure = Figure(figsize=(1.5 + 6.5 * len(units), 5.2), layout="constrained")
    grid = figure.subplots(1, len(units), sharey=True, squeeze=False)[0]
    series = list(dict.fromkeys(point.series for point in sorted(private, key=lambda point: point.rmse)))
    colours = {name: f"C{at}" if at < MOST_SERIES else "0.6" for at, name in enumerate(series)}
    for axes, unit in zip(grid, units, strict=True):
        _draw_panel(axes, [point for point in private if point.unit == unit], colours)
        _draw_baselines(axes, [point for point in points if point.epsilon is None])
        axes.set(xlabel=f"{kind.epsilon}, for each {unit} (logarithmic)")
    grid[0].set(ylabel="RMSE, in rating units: lower is better")
    figure.suptitle(f"{source}: {kind.rmse}", fontsize=11)
    figure.legend(handles=_legend(points, colours), loc="outside right upper", fontsize=8)
    return figure


def _draw_panel(axes: Axes, points: Sequence[Point], colours: Mapping[str, str]) -> None:
    ends = [end for point in points for end in (point.least, point.epsilon) if end]
    low, high = (min(ends) / 2, max(ends) * 2) if ends else (0.1, 10.0)
    axes.set(xscale="log", xlim=(low, high))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda epsilon, _: f"{epsilon:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    if len(set(ends)) <= MOST_TICKS:
        axes.set_xticks(sorted(set(ends)))
    axes.grid(alpha=0.3)
    for name in dict.fromkeys(point.series for point in points):
        line = sorted((p.epsilon or 0.0, p.rmse) for p in points if p.series == name and not p.is_personal)
        axes.plot(*zip(*line, strict=True), color=colours[name], linewidth=0.8, alpha=0.5) if line else None
    alike: dict[tuple[str, str, bool], list[Point]] = {}
    for point in points:
        alike.setdefault((point.series, point.verdict, point.is_personal), []).append(point)
        if point.is_personal and point.epsilon:
            ends_of_own = [max(point.least, low), point.epsilon]
            axes.plot(ends_of_own, [point.rmse] * 2, ":", color=colours[point.series], linewidth=1.2)
    for (name, verdict, is_personal), group in alike.items():
        rmse = [point.rmse for point in group]
        spread = [[max(p.rmse - p.low, 0.0) for p in group], [max(p.high - p.rmse, 0.0) for p in group]]
        at, colour = [point.epsilon or 0.0 for point in group], colours[name]
        face = "white" if is_personal else colour
        axes.errorbar(at, rmse, yerr=spread, fmt=MARKERS[verdict], color=colour, capsize=3, mfc=face)
    if len(points) <= MOST_NUMBERS:
        _write_numbers(axes, points, colours)


def _write_numbers(axes: Axes, points: Sequence[Point], colours: Mapping[str, str]) -> None:
    """Beside the points, but where one would be written over another, which is lower."""
    low, high = axes.get_ylim()
    written: list[tuple[float | None, float]] = []
    for point in sorted(points, key=lambda point: point.rmse):
        at = (point.epsilon, point.rmse)
        if all(epsilon != point.epsilon or point.rmse - rmse > 0.04 * (high - low) for epsilon, rmse in written):
            written.append(at)
            colour = colours[point.series]
            axes.annotate(f"{point.rmse:.3f}", at, (5, 4), textcoords="offset points", fontsize=8, color=colour)


def _draw_baselines(axes: Axes, points: Sequence[Point]) -> None:
    for at, point in enumerate(points):
        axes.axhline(point.rmse, color="0.35", linestyle=BASELINES[at % len(BASELINES)], linewidth=1.2)


def _legend(points: Sequence[Point], colours: Mapping[str, str]) -> list[Line2D]:
    shown = [name for name, colour in colours.items() if colour.startswith("C")]
    handles = [Line2D([], [], color=colours[name], label=name, linewidth=3) for name in shown]
    if len(shown) < len(colours):
        handles.append(Line2D([], [], color="0.6", label=f"{len(colours) - len(shown)} others", linewidth=3))
    for at, point in enumerate([point for point in points if point.epsilon is None]):
        label, style = f"{point.series}, no privacy: {point.rmse:.3f}", BASELINES[at % len(BASELINES)]
        handles.append(Line2D([], [], color="0.35", linestyle=style, label=label))
    for verdict in reversed(WORST_FIRST):
        if any(point.verdict == verdict and point.epsilon is not None for point in points):
            handles.append(Line2D([], [], color="k", marker=MARKERS[verdict], linestyle="", label=verdict))
    if any(point.is_personal for point in points):
        label = "own ε: from least to most"
        handles.append(Line2D([], [], color="k", marker="o", mfc="white", linestyle=":", label=label))
    return handles
