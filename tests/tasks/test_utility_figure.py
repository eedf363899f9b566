"""RMSE against epsilon, from a real MLflow."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from matplotlib.colors import to_hex

from models.candidate import Candidate
from models.index import make_recommender
from models.privacy.specification import Policy, PrivacySpecification
from tasks.state import State
from tasks.tracking import as_params, open_tracking
from tasks.utility_figure import (
    EVALUATED,
    MOST_NUMBERS,
    MOST_SERIES,
    Point,
    evaluated_points,
    newest_evaluations,
    released_points,
    utility_figure,
)


def candidate(name: str = "pdp-histogram", threshold: str | None = None, **privacy: object) -> Candidate:
    recommender = make_recommender(name, {"threshold": threshold} if threshold else {})
    specification = PrivacySpecification(**{"epsilon": 1, "relation": recommender.relation, **privacy})
    return Candidate(recommender, specification, recommender.guarantee(specification, public_catalogue=True))


class Runs:
    """Of one experiment, each a second after the one before."""

    def __init__(self, state: State) -> None:
        self.client = open_tracking(state)
        self.experiment = self.client.create_experiment("films")
        self.at = 0

    def log(self, chosen: Candidate, tags: Mapping[str, str], metrics: Mapping[str, float]) -> str:
        self.at += 1000
        run = self.client.create_run(self.experiment, self.at, dict(tags)).info.run_id
        self.client.log_batch(run, params=as_params(chosen.params))
        for name, value in metrics.items():
            self.client.log_metric(run, name, value)
        return str(run)

    def evaluate(self, chosen: Candidate, rmse: float, batch: str | None = None) -> str:
        epsilon = chosen.guarantee.epsilon
        told = {"cv_rmse": rmse, "cv_rmse_sd": 0.01, **({} if epsilon is None else {"privacy.epsilon": epsilon})}
        run = self.log(chosen, {"latest": "yes"}, told)
        if batch:
            self.client.log_param(run, "batch", batch)
        return run

    def release(self, chosen: Candidate, *, rmse: float | None) -> None:
        spread = {"": 0.0, "_low": -0.1, "_high": 0.2}
        paid = {f"private_rmse{end}": rmse + more for end, more in spread.items()} if rmse is not None else {}
        self.log(chosen, {}, {"privacy.epsilon_spent": chosen.epsilon, "cv_rmse": 0.123, **paid})

    def points(self) -> list[Point]:
        return evaluated_points(newest_evaluations(self.client, self.experiment))


def test_the_newest_of_each_recommender_specification_and_settings_is_drawn(state: State) -> None:
    runs = Runs(state)
    older = runs.evaluate(candidate(), 0.95)
    runs.evaluate(candidate(epsilon=3), 0.85)
    runs.evaluate(candidate("pmf"), 0.8)
    runs.evaluate(candidate(threshold="mean"), 0.91)
    newer = runs.evaluate(candidate(), 0.9)
    points = runs.points()
    assert [(point.series, point.epsilon, point.rmse) for point in points] == [
        ("pdp-histogram threshold=max", 1, 0.9),
        ("pdp-histogram threshold=mean", 1, 0.91),
        ("pmf", None, 0.8),
        ("pdp-histogram threshold=max", 3, 0.85),
    ]
    assert points[0].low == pytest.approx(0.89)
    assert points[0].high == pytest.approx(0.91)
    assert "latest" not in runs.client.get_run(older).data.tags
    assert runs.client.get_run(newer).data.tags["latest"] == "yes"
    runs.client.delete_run(newer)
    assert len(runs.points()) == 3


def test_a_batch_which_predicts_what_is_new_alone_takes_nobodys_place(state: State) -> None:
    runs = Runs(state)
    runs.evaluate(candidate(), 0.9)
    runs.evaluate(candidate(), 1.2, batch="fresh")
    runs.evaluate(candidate(), 1.1, batch="fresh")
    drawn = {point.series: point.rmse for point in runs.points()}
    assert drawn == {"pdp-histogram": 0.9, "pdp-histogram in batches": 1.1}


def test_own_epsilons_units_verdicts_and_relations_are_told_apart(state: State) -> None:
    runs = Runs(state)
    runs.evaluate(candidate(epsilon=None, policy=Policy()), 0.9)
    runs.evaluate(candidate(epsilon=None, preferences={"default": 0.1, "cap": 2}), 0.9)
    runs.evaluate(candidate(unit="user"), 1.0)
    runs.evaluate(candidate("dp-pmf"), 1.8)
    dp_pmf, users, asked, policy = runs.points()
    assert dp_pmf.series == "dp-pmf (replace value)"
    assert (users.series, users.unit, users.is_personal) == ("pdp-histogram (add or remove)", "user", False)
    assert (asked.least, asked.epsilon, asked.is_personal) == (0, 2, True)
    assert (policy.least, policy.epsilon, policy.is_personal) == (0.1, 1, True)
    assert {point.verdict for point in (dp_pmf, policy)} == {"conditional", "proven"}


def test_of_releases_only_what_was_paid_for_is_drawn(state: State) -> None:
    runs = Runs(state)
    runs.release(candidate(), rmse=None)
    assert released_points(runs.client, runs.experiment) == []
    runs.release(candidate(epsilon=2), rmse=0.9)
    (point,) = released_points(runs.client, runs.experiment)
    assert (point.epsilon, point.rmse, point.low, point.high) == (2, 0.9, pytest.approx(0.8), pytest.approx(1.1))


def point(
    series: str = "a", epsilon: float | None = 1.0, rmse: float = 0.9, unit: str = "rating", least: float | None = None
) -> Point:
    verdict = "none" if epsilon is None else "proven"
    least = (epsilon or 0.0) if least is None else least
    return Point(series, epsilon, least, unit, verdict, rmse, rmse - 0.01, rmse + 0.01)


def test_each_unit_has_a_panel_and_every_panel_the_baseline() -> None:
    points = [point(), point(unit="user", rmse=1.2), point("pmf", None, 0.75)]
    figure = utility_figure("films", points, EVALUATED)
    assert [axes.get_xlabel() for axes in figure.axes] == [
        "ε of a release, for each rating (logarithmic)",
        "ε of a release, for each user (logarithmic)",
    ]
    for axes in figure.axes:
        assert [list(line.get_ydata()) for line in axes.lines if line.get_linestyle() == "--"] == [[0.75, 0.75]]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["a", "pmf, no privacy: 0.750", "proven"]


@pytest.mark.parametrize(
    "points",
    [
        [point()],
        [point("pmf", None)],
        [point(epsilon=2.0, least=0.0)],
        [point(f"r{n % 15}", 0.01 * (n + 1), 0.8 + n / 200) for n in range(200)],
    ],
)
def test_one_point_none_that_is_private_and_two_hundred_can_be_drawn(points: list[Point]) -> None:
    figure = utility_figure("films", points, EVALUATED)
    figure.draw_without_rendering()
    (axes,) = figure.axes
    assert (len(axes.texts) > 0) == (0 < len([p for p in points if p.epsilon]) <= MOST_NUMBERS)
    named = [text.get_text() for text in figure.legends[0].get_texts()]
    assert ("5 others" in named) == (len(points) == 200)
    colours = {to_hex(line.get_color()) for line in axes.lines if line.get_marker() == "o"}
    assert len(colours) <= MOST_SERIES + 1
