"""The addresses that `jali ui` prints, against a real MLflow, and the views that they name."""

from __future__ import annotations

import json
from urllib.parse import parse_qs

import pytest

from flows.ui import lines_about
from models.errors import SpecError
from tasks.pages import MOST_COMPARED, SourcePages, pages_of
from tasks.state import State
from tasks.tracking import NOTE, experiment_id, open_tracking
from tasks.views import AUDITS_VIEWS, EVALUATIONS_VIEWS, RELEASES_VIEWS, charts_page, table_page, with_links


def ran(state: State, source: str, *names: str) -> list[str]:
    """Runs of a source, as it is evaluated, oldest first; returns their ids."""
    client = open_tracking(state)
    experiment = experiment_id(client, source, "about", state, EVALUATIONS_VIEWS)
    at = max((run.info.start_time for run in client.search_runs([experiment])), default=len(source) * 1000)
    return [
        client.create_run(experiment, at + n, {"source": source}, run_name=name).info.run_id
        for n, name in enumerate(names, start=1)
    ]


def asked(page: str) -> dict[str, list[str]]:
    return parse_qs(page.partition("?")[2])


def test_pages_are_of_the_source_that_was_run_last_and_name_the_others(state: State) -> None:
    ran(state, "films", "pmf")
    ran(state, "novels", "pmf")
    found = pages_of(state, None)
    assert found is not None
    assert (found.source, found.others) == ("novels", ("films",))
    assert list(found.pages) == ["runs", "charts"]
    number = open_tracking(state).get_experiment_by_name("novels").experiment_id
    assert found.pages["runs"] == table_page(number)
    assert asked(found.pages["runs"])["viewStateShareKey"] == ["jali"]
    assert asked(found.pages["charts"])["viewStateShareKey"] == ["jali-charts"]
    named = pages_of(state, "films")
    assert named is not None
    assert (named.source, named.others) == ("films", ())
    with pytest.raises(SpecError, match="no runs of songs"):
        pages_of(state, "songs")


def test_the_newest_run_of_every_name_is_compared(state: State) -> None:
    ran(state, "films", "pmf", "dp-pmf ε=1", "pmf")
    newest = ran(state, "films", *(f"dp-pmf ε={n}" for n in range(2, MOST_COMPARED)), "pmf")
    found = pages_of(state, "films")
    assert found is not None
    compared = asked(found.pages["compare"])
    assert json.loads(compared["runs"][0])[:-1] == newest[::-1]
    assert len(json.loads(compared["runs"][0])) == MOST_COMPARED


def test_releases_versions_and_what_is_served_have_pages_where_there_are_such(state: State) -> None:
    ran(state, "my films", "pmf")
    client = open_tracking(state)
    experiment_id(client, "my films.releases", "about", state, RELEASES_VIEWS)
    client.create_registered_model("my films.serving", tags={"source": "my films"})
    client.create_experiment("audits")
    found = pages_of(state, None)
    assert found is not None
    assert list(found.pages) == ["runs", "charts", "releases", "versions", "serving", "audits"]
    assert asked(found.pages["versions"])["searchInput"] == ["tags.source = 'my films'"]
    assert found.pages["serving"] == "#/models/my%20films.serving"
    assert not any(" " in page for page in found.pages.values())


def test_there_are_no_pages_where_nothing_was_run(state: State) -> None:
    assert pages_of(state, None) is None
    with pytest.raises(SpecError, match="no runs of films"):
        pages_of(state, "films")
    assert not state.tracking_database.exists()
    open_tracking(state).create_run("0", tags={"source": "films"})  # not in an experiment of that name
    assert pages_of(state, None) is None


def test_what_jali_ui_prints_follows_the_servers_address() -> None:
    found = SourcePages("films", {"runs": "#/experiments/1", "serving": "#/models/x"}, ("novels", "songs"))
    assert list(lines_about(found, "http://127.0.0.1:5000/")) == [
        "films in MLflow:",
        "  runs      http://127.0.0.1:5000/#/experiments/1",
        "  serving   http://127.0.0.1:5000/#/models/x",
        "There is also novels, songs: name one with --source.",
    ]
    assert list(lines_about(found, "postgresql://host/mlflow")) == []
    assert list(lines_about(None, "http://127.0.0.1:5000")) == ["Nothing was run here yet: `jali run` does that."]


@pytest.mark.parametrize("views", [EVALUATIONS_VIEWS, RELEASES_VIEWS, AUDITS_VIEWS])
def test_a_view_is_what_mlflow_reads(views: dict[str, str]) -> None:
    """Names of MLflow 3.17's own view, which it would store with its Share button."""
    table, charts = (json.loads(text) for text in views.values())
    assert set(table["selectedColumns"]) < set(table["columnOrder"])
    assert set(table["columnWidths"]) == set(table["selectedColumns"])
    sections = {section["uuid"] for section in charts["compareRunSections"]}
    assert {chart["metricSectionId"] for chart in charts["compareRunCharts"]} < sections
    scatter, parallel, bars = charts["compareRunCharts"]
    assert [scatter["xaxis"]["key"], scatter["yaxis"]["key"]] == parallel["selectedMetrics"]
    assert bars["metricKey"] == scatter["yaxis"]["key"]
    assert max(map(len, views.values())) <= 5000


def test_notes_and_views_of_another_jali_are_brought_up_to_date_and_nothing_else_is_touched(state: State) -> None:
    client = open_tracking(state)
    number = client.create_experiment("films", tags={NOTE: "old", "team": "ours"})
    client.delete_experiment(number)
    assert experiment_id(client, "films", "new", state, EVALUATIONS_VIEWS) == number
    tags = client.get_experiment(number).tags
    assert tags.items() >= {NOTE: with_links("new", number), "team": "ours", **EVALUATIONS_VIEWS}.items()
    assert charts_page(number) in tags[NOTE]
