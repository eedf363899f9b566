"""Addresses of MLflow's pages about a source: its runs, their charts and comparison, its releases and versions."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from models.errors import SpecError, shown
from tasks.guard import guarded
from tasks.registered import serving_name
from tasks.state import State
from tasks.tracking import open_tracking
from tasks.views import AUDITS, charts_page, query, table_page

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

MOST_RUNS = 500
"""The newest that are looked at: sources without any among them are opened by name."""
MOST_COMPARED = 8


@dataclass(frozen=True)
class SourcePages:
    """What there is to look at of a source.

    Attributes:
      pages: label to what follows the server's address and a slash.
      others: further sources with runs, newest first.
    """

    source: str
    pages: dict[str, str]
    others: tuple[str, ...] = ()


@guarded("Reading MLflow")
def pages_of(state: State, source: str | None) -> SourcePages | None:
    """Of the source that was run last where none is named; None where nothing was.

    Raises:
      SpecError: nothing was run of the source that is named.
    """
    if state.tracks_locally and not state.tracking_database.exists():
        found: dict[str, list[Run]] = {}
    else:
        client = open_tracking(state)
        found = _newest_runs(client, source)
    if source is not None and source not in found:
        raise SpecError(f"MLflow has no runs of {shown(source)}. `jali ui` without --source shows what it has.")
    if not found:
        return None
    chosen, *others = found
    return SourcePages(chosen, _pages(client, chosen, found[chosen]), tuple(others))


def _newest_runs(client: MlflowClient, source: str | None) -> dict[str, list[Run]]:
    """Evaluations by source, newest first."""
    names = {
        experiment.experiment_id: experiment.name
        for experiment in client.search_experiments()
        if source in (None, experiment.name)
    }
    runs = client.search_runs(list(names), order_by=["attributes.start_time DESC"], max_results=MOST_RUNS)
    found: dict[str, list[Run]] = {}
    for run in runs:
        name = names[run.info.experiment_id]
        if run.data.tags.get("source") == name:  # neither releases nor runs of somebody else's
            found.setdefault(name, []).append(run)
    return found


def _pages(client: MlflowClient, source: str, runs: list[Run]) -> dict[str, str]:
    experiment = runs[0].info.experiment_id
    newest: dict[str, str] = {}
    for run in runs:
        newest.setdefault(run.info.run_name, run.info.run_id)
    compared = list(newest.values())[:MOST_COMPARED]
    pages = {"runs": table_page(experiment), "charts": charts_page(experiment)}
    if len(compared) > 1:
        pages["compare"] = "#/compare-runs?" + query(runs=_list(compared), experiments=_list([experiment]))
    if releases := client.get_experiment_by_name(f"{source}.releases"):
        pages["releases"] = table_page(releases.experiment_id)
        pages["versions"] = "#/models?" + query(searchInput=f"tags.source = '{source}'")
    if client.search_registered_models(f"name = '{serving_name(source)}'"):
        pages["serving"] = f"#/models/{quote(serving_name(source), safe='')}"
    if audits := client.get_experiment_by_name(AUDITS):
        pages["audits"] = table_page(audits.experiment_id)
    return pages


def _list(texts: list[str]) -> str:
    return json.dumps(texts, separators=(",", ":"))
