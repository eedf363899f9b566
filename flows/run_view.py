"""What a run leaves for whoever opens Prefect: what was promised, published and paid for, and no other figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from flows.promotion_requests import Promotion
from models.errors import JaliError, SpecError
from tasks.tracking import place_in_mlflow

if TYPE_CHECKING:
    from flows.run import Result

HEADINGS = ("recommender", "protects", "ε", "verdict", "version", "private RMSE", "cross-validation")


def results_shown(
    source: str, results: Sequence[Result], run_ids: Mapping[str, str]
) -> tuple[tuple[str, ...], list[tuple[str, ...]], list[str]]:
    """Headings, a row for each recommender, and the guarantees in words."""
    rows = [_row(source, result, run_ids[result.candidate.name]) for result in results]
    lines = [f"{result.candidate.name}: {result.candidate.guarantee.sentence}" for result in results]
    return (
        HEADINGS,
        rows,
        [*lines, "Cross-validation's figures were not paid for: they are in MLflow alone (`jali ui`)."],
    )


def _row(source: str, result: Result, run_id: str) -> tuple[str, ...]:
    promise, name = result.candidate.guarantee, f"{source}.{result.candidate.name}"
    version = place_in_mlflow(f"{name} v{result.version}", f"models/{name}/versions/{result.version}")
    return (
        result.candidate.name,
        promise.protects,
        promise.epsilon_summary,
        promise.verdict,
        version if result.version else "not published",
        result.metrics.summary if result.metrics else "",
        place_in_mlflow(f"run {run_id[:8]}", f"runs/{run_id}"),
    )


def offered(source: str, results: Sequence[Result]) -> str:
    """Offer what a run published for promotion; what became of it, in words. The run stays as it is."""
    from flows.promote import promote

    said = []
    for result in results:
        if result.version is None:
            continue
        name = f"{result.candidate.name} v{result.version}"
        asked = Promotion(
            recommender=result.candidate.name, version=result.version, source=source, why="published by a scheduled run"
        )
        try:
            promote(asked)
        except JaliError as refusal:
            said.append(f"{name} was not promoted: {refusal}")
        else:
            said.append(f"{name} was promoted.")
    return " ".join(said)


def require_one_to_promote(names: Sequence[str], *, publishes: bool) -> None:
    """Raise SpecError unless a run of these recommenders publishes one, which can then be promoted."""
    if len(names) != 1 or not publishes:
        raise SpecError(
            "--promote offers what a run publishes, and one source serves one recommender: name one under "
            "`recommenders`, and leave `publish` as it is."
        )
