"""`jali promote` and `jali rollback`: what is served, by whose decision, and after which gates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, TypeVar

from prefect import flow

from flows.exits import remember_termination
from flows.promote_view import (
    although_lines,
    decision_markdown,
    next_lines,
    outcome_line,
    refusal,
    rollback_line,
    rollback_markdown,
)
from flows.promotion_requests import Promotion, Rollback
from flows.refusals import named_refusals
from models.errors import NotPromoted
from tasks.artifacts import leave_decision_task
from tasks.clean_process import CleanProcess, clean_process
from tasks.decisions import GATES, Gate, Who
from tasks.gates import (
    Champion,
    Finding,
    Offered,
    audit_gate,
    budget_gate,
    code_gate,
    load_gate,
    look_task,
    metric_gate,
    schema_gate,
    verdict_gate,
)
from tasks.lease import Lease, lease
from tasks.progress import stage, step
from tasks.promotion import (
    copy_that_serves_task,
    find_offered_task,
    find_serving_task,
    note_refusal_task,
    open_champion_task,
    open_offered_task,
    serve_task,
)
from tasks.rollback import Way, require_nothing_since_task, require_servable_task, roll_back_task, way_back_task
from tasks.state import current_state
from tasks.unstored import whole


@dataclass(frozen=True)
class Decision:
    """What became of a version that was to be promoted.

    Attributes:
      version: as `SOURCE.RECOMMENDER/NUMBER`.
      outcome: `open`: the gates let it pass, and nobody asked for more.
      champion: what was champion, alike; "" where nothing was.
      number: of its copy in SOURCE.serving, where it is served now.
      faults: what could not be done when it was decided, a sentence each.
    """

    source: str
    version: str
    who: Who
    findings: tuple[Finding, ...] = ()
    outcome: Literal["promoted", "refused", "open", "champion already"] = "open"
    is_dry_run: bool = False
    champion: str = ""
    number: str = ""
    faults: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """Of the flow's last state."""
        return outcome_line(self)

    @property
    def lines(self) -> list[str]:
        """For the terminal: what happened, what went wrong afterwards, what to do next."""
        return [self.sentence, *self.faults, *next_lines(self)]


@dataclass(frozen=True)
class RolledBack:
    """What a rollback did.

    Attributes:
      although: what was found about the version since it was promoted.
      faults: what could not be done when it was champion, a sentence each.
    """

    source: str
    who: Who
    way: Way
    although: str = ""
    faults: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """Of the flow's last state."""
        return rollback_line(self)

    @property
    def lines(self) -> list[str]:
        """For the terminal: what is served, what speaks against it, what went wrong afterwards."""
        return [self.sentence, *although_lines(self), *self.faults]


Settled = TypeVar("Settled", Decision, RolledBack)
_settled: ContextVar[list[Decision | RolledBack] | None] = ContextVar("_settled", default=None)


@contextmanager
def settled() -> Iterator[list[Decision | RolledBack]]:
    """What is so once the aliases moved, for whoever has to say it although Prefect was lost or somebody interrupts."""
    done: list[Decision | RolledBack] = []
    token = _settled.set(done)
    try:
        yield done
    finally:
        _settled.reset(token)


def _settle(done: Settled) -> Settled:
    told = _settled.get()
    if told is not None:
        told.append(done)
    return done


@flow(name="jali promote", flow_run_name="{request.recommender}", persist_result=False)
@named_refusals
def promote(request: Promotion) -> Decision:
    """Look at every gate, and make the version the champion if all of them let it pass."""
    remember_termination()
    who = Who.now(request.why)
    with clean_process() as process, TemporaryDirectory(prefix="jali-") as folder:
        stage("Opening MLflow and the ledger")
        source, number = find_offered_task(request.recommender, request.source, request.version)
        with nullcontext() if request.dry_run else alone(source, who) as held:
            decision = decided(request, source, number, who, Bench(process, Path(folder), held))
    if decision.outcome == "refused":
        raise NotPromoted(refusal(decision), decision)
    return decision


@dataclass(frozen=True)
class Bench:
    """What a decision is made with: a process to load the version in, a folder for files, and the right to change."""

    process: CleanProcess
    folder: Path
    held: Lease | None


def alone(source: str, who: Who) -> AbstractContextManager[Lease]:
    """Nobody else changes what the source serves until the block ends."""
    return lease(current_state(), f"changing what {source} serves", who.name)


def decided(request: Promotion, source: str, number: str, who: Who, bench: Bench) -> Decision:
    """Look, and do what follows from it; a dry run looks alone."""
    stage("Reading the version and the champion")
    offered = open_offered_task(request.recommender, source, number, bench.folder / "offered")
    before, champion = open_champion_task(source, bench.folder / "champion")
    origin = champion.origin if champion else ""
    decision = Decision(source, f"{offered.model}/{number}", who, is_dry_run=request.dry_run, champion=origin)
    if champion is not None and copy_that_serves_task(whole(offered)) == champion.number:
        return replace(decision, outcome="champion already", number=champion.number)
    findings = looked(request, offered, champion, bench.process)
    is_refused = any(finding.outcome == "refused" for finding in findings)
    decision = replace(decision, findings=findings, outcome="refused" if is_refused else "open")
    if bench.held is None:
        return decision
    if is_refused:
        note_refusal_task(whole(offered), findings, who)
    else:
        stage("Promoting")
        served = serve_task(whole(offered), findings, before, who, whole(bench.held))
        decision = _settle(replace(decision, outcome="promoted", number=served))
    return replace(decision, faults=recorded(source, decision_markdown(decision)))


def recorded(source: str, markdown: str) -> tuple[str, ...]:
    """Leave the decision in Prefect; a sentence where that fails, for it holds all the same."""
    try:
        leave_decision_task(source, markdown)
    except Exception:  # of whatever library: to be told that it failed is to do it again
        return ("Prefect did not keep the decision as an artifact; the version's tags in the registry have it.",)
    return ()


def looked(
    request: Promotion, offered: Offered, champion: Champion | None, process: CleanProcess
) -> tuple[Finding, ...]:
    """What every gate finds; one that refuses hides no other."""
    stage("Looking at the gates", len(GATES))
    found: dict[Gate, Finding] = {}
    gates: dict[Gate, Callable[[], str]] = {
        "verdict": partial(verdict_gate, offered),
        "budget": partial(budget_gate, offered),
        "metric": partial(metric_gate, offered, champion, request.max_rmse),
        "audit": partial(audit_gate, offered),
        "code": partial(code_gate, offered),
        "load": lambda: load_gate(offered, found["code"], process),
        "schema": partial(schema_gate, offered, champion),
    }
    for gate in GATES:
        found[gate] = look_task(gate, request.waive.get(gate, ""), whole(gates[gate]))
        step()
    return tuple(found.values())


@flow(name="jali rollback", flow_run_name="{request.source}", persist_result=False)
@named_refusals
def rollback(request: Rollback) -> RolledBack:
    """Make the champion what was champion before, if its files are there and nothing was found about it since."""
    remember_termination()
    who = Who.now(request.why)
    stage("Opening MLflow and the ledger")
    source = find_serving_task(request.source)
    with alone(source, who) as held, TemporaryDirectory(prefix="jali-") as folder:
        way = way_back_task(source, request.to)
        stage("Looking at what was champion before")
        require_servable_task(source, way, Path(folder, "before"))
        although = require_nothing_since_task(source, way, who)
        stage("Rolling back")
        faults = roll_back_task(source, way, who, whole(held), although)
        done = _settle(RolledBack(source, who, way, although, faults))
        return replace(done, faults=(*faults, *recorded(source, rollback_markdown(done))))
