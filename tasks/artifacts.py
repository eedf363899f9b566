"""What a run leaves in the Prefect UI: Markdown of public things."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Sequence
from io import BytesIO
from zlib import crc32

from tasks.guard import guarded
from tasks.ledger import Ledger
from tasks.ledger_figure import ledger_figure
from tasks.unstored import unstored_task


@guarded("Leaving the ledger in Prefect")
def leave_ledger(
    source: str, ledger: Ledger, headings: Sequence[str], rows: Sequence[Sequence[str]], lines: Sequence[str]
) -> None:
    """The ledger of a source as an artifact, a version for every run: figure, sums and table."""
    from prefect.artifacts import create_markdown_artifact

    table = markdown_table(headings, rows)
    picture = BytesIO()
    ledger_figure(source, ledger.history(source), ledger.budget(source)).savefig(picture, dpi=90)
    figure = f"![What was spent on {source}](data:image/png;base64,{b64encode(picture.getvalue()).decode()})"
    create_markdown_artifact(
        "\n".join([figure, "", *(f"- {line}" for line in lines), "", *table]),
        key=_key("ledger", source),
        description=f"What was spent on {source}, and what is left",
    )


@guarded("Leaving the results in Prefect")
def leave_results(source: str, headings: Sequence[str], rows: Sequence[Sequence[str]], lines: Sequence[str]) -> None:
    """What a run made of a source as an artifact, a version for every run: a table, and lines below it."""
    from prefect.artifacts import create_markdown_artifact

    table = markdown_table(headings, rows)
    create_markdown_artifact(
        "\n".join([*table, "", *(f"- {line}" for line in lines)]),
        key=_key("results", source),
        description=f"What the run made of {source}, and where it is in MLflow",
    )


@guarded("Leaving the decision in Prefect")
def leave_decision(source: str, markdown: str) -> None:
    """What was decided about serving a source as an artifact, a version for every decision."""
    from prefect.artifacts import create_markdown_artifact

    create_markdown_artifact(markdown, key=_key("promotion", source), description=f"What {source} serves, and why")


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Its lines."""
    return [_row(headings), _row(["---"] * len(headings)), *(_row(row) for row in rows)]


def _key(what: str, source: str) -> str:
    """An artifact's: Prefect takes small letters, digits and hyphens."""
    return f"{what}-{re.sub('[^a-z0-9]+', '-', source.lower()).strip('-')}-{crc32(source.encode()):08x}"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("\n", " ").replace("|", "\\|") for cell in cells) + " |"


leave_ledger_task = unstored_task(leave_ledger, "leave the ledger in Prefect")
leave_results_task = unstored_task(leave_results, "leave the results in Prefect")
leave_decision_task = unstored_task(leave_decision, "leave the decision in Prefect")
