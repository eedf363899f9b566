"""How MLflow's pages of an experiment open: a view kept in the experiment's own tag, which an address can name.

MLflow's table of runs opens without a single parameter or metric. What its *Share* button writes into a tag of the
experiment is written here beforehand: `?viewStateShareKey=jali` then shows these columns, and these charts. What a
version of MLflow does not know of it, it passes over.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlencode

VIEW = "jali"
VIEW_TAG = f"mlflow.sharedViewState.{VIEW}"

OURS = {"workflowType": "machine_learning", "viewStateShareKey": VIEW}
"""MLflow's pages for training, not those for language models; and the view."""

NEWEST_FIRST = {"orderByKey": "attributes.start_time", "orderByAsc": False}
"""So that what was run together stands together, and charts, which take a hundred runs, take the newest."""

WIDTHS = {"release": 200, "privacy.epsilon_spent": 165, "audit.epsilon_claimed": 165, "audit.epsilon_shown": 165}
WIDTH = 120
CHARTS, METRICS = "jali-charts", "jali-metrics"


def table_page(experiment: str) -> str:
    """Where the runs of an experiment are shown in its view; follows the server's address and a slash."""
    return f"#/experiments/{experiment}/runs?{query(**OURS)}"


def charts_page(experiment: str) -> str:
    return f"{table_page(experiment)}&{query(compareRunsMode='CHART')}"


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
        "selectedColumns": names,
        "columnOrder": ["attributes.`Run Name`", "attributes.`Created`", *names],
        "columnWidths": {_column(kind, name): WIDTHS.get(name, WIDTH) for kind, name in columns},
    }


def _chart(kind: str, **of: Any) -> dict[str, Any]:
    card = {"uuid": f"jali-{kind.lower()}", "type": kind, "metricSectionId": CHARTS, "runsCountToCompare": 100}
    return {**card, "deleted": False, "isGenerated": False, **of}


def _charts(x: str, y: str, params: Sequence[str]) -> dict[str, Any]:
    """The metric `y` against `x`, also through parameters, and alone; MLflow's own charts of metrics stay folded."""
    axes = {"xaxis": {"key": x, "type": "METRIC"}, "yaxis": {"key": y, "type": "METRIC"}}
    ours = {"uuid": CHARTS, "name": "Privacy and utility", "display": True, "columns": 2, "cardHeight": 420}
    theirs = {"uuid": METRICS, "name": "Model metrics", "display": False}
    return {
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


_OF_ALL = [("params", "recommender"), ("params", "privacy.epsilon"), ("params", "privacy.verdict")]

EVALUATIONS_VIEW = json.dumps(
    {
        **NEWEST_FIRST,
        **_table([*_OF_ALL, ("metrics", "cv_rmse"), ("tags", "release"), ("metrics", "cv_rmse_sd")]),
        **_charts("privacy.epsilon", "cv_rmse", ("recommender", "privacy.verdict")),
    }
)
RELEASES_VIEW = json.dumps(
    {
        **NEWEST_FIRST,
        **_table([*_OF_ALL, ("metrics", "privacy.epsilon_spent"), ("metrics", "private_rmse")]),
        **_charts("privacy.epsilon_spent", "private_rmse", ("recommender", "privacy.verdict")),
    }
)
AUDITS_VIEW = json.dumps(
    {
        **NEWEST_FIRST,
        **_table(
            [
                *_OF_ALL,
                ("tags", "audit.result"),
                ("metrics", "audit.epsilon_claimed"),
                ("metrics", "audit.epsilon_shown"),
                ("params", "audit.runs"),
            ]
        ),
        **_charts("audit.epsilon_claimed", "audit.epsilon_shown", ("recommender", "audit.runs")),
    }
)
