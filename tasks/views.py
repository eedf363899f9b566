"""How MLflow's pages of an experiment open: a view kept in the experiment's own tag, which an address can name.

MLflow's table of runs opens without a single parameter or metric. What its *Share* button writes into a tag of the
experiment is written here beforehand: `?viewStateShareKey=jali` then shows these columns, and `=jali-charts` these
charts. What a version of MLflow does not know of it, it passes over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

LATEST = "latest"
"""Tag of evaluations that none alike followed: of the thousands that a schedule makes, these are compared and drawn."""
TABLE, CHARTS = "jali", "jali-charts"
"""What the views are called."""
VIEW_TAG = "mlflow.sharedViewState."

AUDITS = "audits"
"""The experiment of all sources' audits; flows/names.py keeps it from being a source's."""

NEWEST_FIRST = {"orderByKey": "attributes.start_time", "orderByAsc": False}
"""So that what was run together stands together."""

WIDTHS = {"release": 200, "privacy.epsilon_spent": 165, "audit.epsilon_claimed": 165, "audit.epsilon_shown": 165}
WIDTH = 120


def table_page(experiment: str) -> str:
    """Where the runs of an experiment are shown so; follows the server's address and a slash."""
    return _page(experiment, viewStateShareKey=TABLE)


def charts_page(experiment: str) -> str:
    """The same for its charts."""
    return _page(experiment, viewStateShareKey=CHARTS, compareRunsMode="CHART")


def _page(experiment: str, **view: str) -> str:
    """Among MLflow's pages for training, not among those for language models."""
    return f"#/experiments/{experiment}/runs?{query(workflowType='machine_learning', **view)}"


def with_links(note: str, experiment: str) -> str:
    """A note that begins with the way to the view: whoever opens the experiment from MLflow's list comes without it."""
    return f"[Table]({table_page(experiment)}) · [Charts]({charts_page(experiment)}) · {note}"


def query(**of: str) -> str:
    return urlencode(of, quote_via=quote, safe=",")


def _column(kind: str, name: str) -> str:
    return f"{kind}.`{name}`"


def _table(columns: Sequence[tuple[str, str]]) -> dict[str, Any]:
    names = [_column(kind, name) for kind, name in columns]
    return {
        **NEWEST_FIRST,
        "selectedColumns": names,
        "columnOrder": ["attributes.`Run Name`", "attributes.`Created`", *names],
        "columnWidths": {_column(kind, name): WIDTHS.get(name, WIDTH) for kind, name in columns},
    }


def _charts(x: str, y: str, params: Sequence[str], only: str = "") -> dict[str, Any]:
    """The metric `y` against `x`, also through parameters, and alone; MLflow's own charts of metrics stay folded."""
    axes = {"xaxis": {"key": x, "type": "METRIC"}, "yaxis": {"key": y, "type": "METRIC"}}
    ours = {"uuid": "jali", "name": "Privacy and utility", "display": True, "columns": 2, "cardHeight": 420}
    theirs = {"uuid": "jali-metrics", "name": "Model metrics", "display": False}
    return {
        **NEWEST_FIRST,  # a chart takes a hundred
        "searchFilter": only,
        "runsHiddenMode": "SHOW_ALL",
        "isAccordionReordered": True,  # otherwise sections are sorted by name
        "compareRunSections": [
            {**ours, "isReordered": True, "deleted": False, "isGenerated": False},
            {**theirs, "isReordered": True, "deleted": False, "isGenerated": True},
        ],
        "compareRunCharts": [
            _chart("SCATTER", **axes),
            _chart("PARALLEL", selectedParams=list(params), selectedMetrics=[x, y], showAllRuns=False),
            _chart("BAR", metricKey=y),
        ],
    }


def _chart(kind: str, **of: Any) -> dict[str, Any]:
    card = {"uuid": f"jali-{kind.lower()}", "type": kind, "metricSectionId": "jali", "runsCountToCompare": 100}
    return {**card, "deleted": False, "isGenerated": False, **of}


def _views(table: Mapping[str, Any], charts: Mapping[str, Any]) -> dict[str, str]:
    """As tags of an experiment."""
    return {VIEW_TAG + TABLE: json.dumps(table), VIEW_TAG + CHARTS: json.dumps(charts)}


_OF_ALL = [("params", "recommender"), ("params", "privacy.epsilon"), ("params", "privacy.verdict")]

EVALUATIONS_VIEWS = _views(
    _table([*_OF_ALL, ("metrics", "cv_rmse"), ("tags", "release"), ("metrics", "cv_rmse_sd")]),
    _charts("privacy.epsilon", "cv_rmse", ("recommender", "privacy.verdict"), only=f"tags.{LATEST} = 'yes'"),
)
RELEASES_VIEWS = _views(
    _table([*_OF_ALL, ("metrics", "privacy.epsilon_spent"), ("metrics", "private_rmse")]),
    _charts("privacy.epsilon_spent", "private_rmse", ("recommender", "privacy.verdict")),
)
AUDITS_VIEWS = _views(
    _table(
        [
            *_OF_ALL,
            ("tags", "audit.result"),
            ("metrics", "audit.epsilon_claimed"),
            ("metrics", "audit.epsilon_shown"),
            ("params", "audit.runs"),
        ]
    ),
    _charts("audit.epsilon_claimed", "audit.epsilon_shown", ("recommender", "audit.runs")),
)
