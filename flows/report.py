"""What a run says at its end: the table on the terminal and the report file."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib.metadata import version
from shlex import quote
from typing import Any

from rich.table import Table

from flows.batches import batch_lines
from flows.job import Job
from flows.run import Done, Result
from models.errors import EnvironmentFault, shown
from models.privacy.accounting import Amount, spending
from tasks.paths import home_path

FULL_WIDTH = 79


def result_table(results: list[Result], width: int) -> Table:
    """Two lines per recommender at the most; in less than 80 columns the promise stays and MAE and the like go."""
    full = width >= FULL_WIDTH
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold", pad_edge=False)
    table.add_column("recommender", no_wrap=True)
    table.add_column("protects", min_width=13)
    table.add_column("ε", justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for heading in ("RMSE\n± sd", *(("MAE", "within\n1", "fit") if full else ()), "ver."):
        table.add_column(heading, justify="right", no_wrap=True)
    styles = {"proven": "green", "conditional": "yellow", "broken": "red", "none": "dim"}
    for result in results:
        promise = result.candidate.guarantee
        client = result.evaluation.summaries["client"] or {}
        table.add_row(
            result.candidate.name,
            promise.protects.replace(", ", ",\n"),
            promise.epsilon_summary.replace("..", "..\n"),
            f"[{styles[promise.verdict]}]{promise.verdict}[/]",
            f"{client['rmse']:.4f}\n±{client['rmse_sd']:.4f}" if client else "-",
            *(_details(result, client) if full else ()),
            f"v{result.version}" if result.version else "-",
        )
    return table


def closing_lines(job: Job, done: Done, seconds: float) -> list[str]:
    """What stands below the table: why a verdict is less than proven, what was spent, what to do next."""
    results = done.results
    weak = weaknesses(results)
    lines = [line for reason in weak for line in ("", reason)]
    if held_back := held_back_for_a_budget(job, results):
        lines += [
            "",
            f"{', '.join(held_back)}: not published, because {job.source} has a budget, which counts what is proven.",
        ]
    lines += ["", "RMSE, MAE and `within 1` are of held-out ratings, in rating units, over folds."]
    lines += [one.sentence for one in done.finished]
    if any(result.is_paid_before for result in results):
        lines.append("Run again for a new release.")
    lines += [*batch_lines(job), *metrics_lines(results), *spending_lines(job, results)]
    lines += [f"It took {seconds:.0f} s. Next:"]
    lines += ["  jali ui            compare the runs in MLflow, and see the registered versions"]
    lines += ["  jali ledger show   what was spent so far, release by release"]
    proven = [result.candidate.name for result in results if result.candidate.guarantee.verdict == "proven"]
    if promotable := [r.candidate.name for r in results if r.version and r.candidate.guarantee.verdict == "proven"]:
        lines.append(f"  jali promote {promotable[0]} --source {quote(job.source)}   serve it")
    if weak and proven and any(result.version and result.candidate.name not in proven for result in results):
        lines.append(f"  --recommenders {','.join(proven)}   publishes only what is proven")
    if job.report:
        lines.append(f"  {shown(job.report)}   the same figures and more, as JSON")
    return lines


def held_back_for_a_budget(job: Job, results: list[Result]) -> list[str]:
    """What would have been published without one."""
    verdicts = {result.candidate.name: result.candidate.guarantee.verdict for result in results if not result.version}
    return [name for name, verdict in verdicts.items() if job.publish and verdict in ("conditional", "broken")]


def weaknesses(results: list[Result]) -> list[str]:
    """Why verdicts are less than proven, in a sentence for all that share the reasons."""
    names: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for result in results:
        promise = result.candidate.guarantee
        if promise.verdict in ("conditional", "broken"):
            names.setdefault((promise.verdict, promise.weaknesses), []).append(result.candidate.name)
    return [f"{', '.join(who)}: {verdict}; {'; '.join(reasons)}." for (verdict, reasons), who in names.items()]


def metrics_lines(results: list[Result]) -> list[str]:
    """What the versions state of their accuracy: public, and paid for."""
    return [
        f"{result.candidate.name} v{result.version} states a private RMSE of {result.metrics.summary}."
        for result in results
        if result.metrics
    ]


def spending_lines(job: Job, results: list[Result]) -> list[str]:
    """What the run spent, a sentence per relation in which something was promised."""
    published = _published(results)
    lines = []
    for relation in dict.fromkeys(amount.guarantee.relation for amount in published):
        assert relation is not None
        total = spending(published, relation)
        epsilon = f"ε={total.epsilon:g}" + (f" at δ={total.delta:g}" if total.delta else "")
        if relation == "replace_value" and any(amount.guarantee.relation != relation for amount in published):
            epsilon += " (a changed rating pays twice what is private for one that comes or goes)"
        whom = f"for any {job.privacy.unit} of {job.source} ({relation.replace('_', ' ')})"
        if total.is_proven:
            lines.append(f"This run spent at most {epsilon} {whom}.")
            continue
        names = dict.fromkeys(amount.name for amount in published)  # once, and not again for its metrics
        which = ", ".join(name for name in names if name not in total.without_promise)
        line = f"{which}: {epsilon} claimed {whom}"
        rest = ", ".join(total.without_promise)
        line += f"; {rest}, published too, promised nothing of it" if rest else ", and not proven"
        lines.append(f"{line}.")
    if any(result.version for result in results):
        return lines or ["This run spent nothing."]
    return lines or ["Nothing was published and nothing spent."]


def _published(results: list[Result]) -> list[Amount]:
    return [charge.amount for result in results if result.version for charge in result.bill]


def _details(result: Result, client: dict[str, float]) -> tuple[str, str, str]:
    mae, within = (f"{client['mae']:.3f}", f"{client['within_1']:.1%}") if client else ("-", "-")
    return mae, within, _duration(result.evaluation.fit_seconds)


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def report(job: Job, results: list[Result], seconds: float) -> dict[str, Any]:
    """The report file's content; `dataset` says what was declared, not what was counted."""
    specification = results[0].candidate.specification
    return {
        "dataset": {
            "source": job.source,
            "ratings": job.ratings.path if job.ratings else "sample",
            "items": job.items,
            "folds": job.folds,
        },
        "privacy": {
            **specification.model_dump(mode="json", exclude={"relation"}),  # each recommender has its own
            "largest_epsilon": specification.largest_epsilon,
            "mean_epsilon": specification.mean_epsilon,
            "epsilon_spent": _sum_by_relation(results),
        },
        "seconds": seconds,
        "jali": version("jali"),
        "recommenders": [_entry(result) for result in results],
    }


def _sum_by_relation(results: list[Result]) -> dict[str, dict[str, float | None]]:
    """Claimed and proven epsilon of all that was published; null where a release promises nothing of the kind."""
    published = _published(results)
    sums = {}
    for relation in dict.fromkeys(amount.guarantee.relation for amount in published):
        assert relation is not None
        total = spending(published, relation)
        sums[str(relation)] = {
            "claimed": None if total.without_promise else total.epsilon,
            "proven": total.epsilon if total.is_proven else None,
        }
    return sums


def write_report(path: str, content: dict[str, Any]) -> None:
    """Write the report whole or not at all.

    Raises:
      EnvironmentFault: it cannot be written.
    """
    target = home_path(path)
    part = target.with_name(f"{target.name}.part")
    try:
        part.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
        part.replace(target)
    except OSError as error:
        raise EnvironmentFault(f"the report {shown(path)} cannot be written ({error.strerror}).") from None


def _entry(result: Result) -> dict[str, Any]:
    return {
        "name": result.candidate.name,
        "version": result.version,
        "guarantee": result.candidate.guarantee.model_dump(mode="json"),
        "epsilon_spent": result.epsilon_spent,
        "private_metrics": asdict(result.metrics) if result.metrics else None,
        **result.evaluation.summaries,
        "fit_seconds": result.evaluation.fit_seconds,
        "cv_seconds": result.evaluation.seconds,
    }
