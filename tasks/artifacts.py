"""What a run leaves in the Prefect UI: Markdown of public things."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tasks.guard import guarded
from tasks.unstored import unstored_task


@guarded("Leaving the ledger in Prefect")
def leave_ledger(source: str, headings: Sequence[str], rows: Sequence[Sequence[str]], lines: Sequence[str]) -> None:
    """The ledger of a source as an artifact, a version for every run."""
    from prefect.artifacts import create_markdown_artifact

    table = [_row(headings), _row(["---"] * len(headings)), *(_row(row) for row in rows)]
    create_markdown_artifact(
        "\n".join([*table, "", *(f"- {line}" for line in lines)]),
        key=f"ledger-{re.sub('[^a-z0-9]+', '-', source.lower()).strip('-')}",
        description=f"What was spent on {source}, and what is left",
    )


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("\n", " ").replace("|", "\\|") for cell in cells) + " |"


leave_ledger_task = unstored_task(leave_ledger, "leave the ledger in Prefect")
