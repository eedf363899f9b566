"""The gates that a version passes before it is served. Each looks by itself at public things and says what it found."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from models.errors import JaliError, LedgerDoubted, Refused, shown
from models.privacy.guarantee import Guarantee
from models.private_metrics import KEPT_AS, PaidMetrics
from models.release import FORMAT, Release
from tasks.audit_history import RUNS
from tasks.audits import require_all_noted, require_not_exceeded
from tasks.clean_process import CleanProcess, made_up_requests, require_same_answers
from tasks.decisions import Gate
from tasks.guard import guarded
from tasks.ledger import Ledger
from tasks.ledger_entries import COUNTED, Entry
from tasks.model_files import require_own_code, signature_of
from tasks.registry import RESERVATION, require_same_ledger
from tasks.state import current_state
from tasks.unstored import unstored_task

Outcome = Literal["pass", "refused", "waived", "-"]
"""A dash: not looked at, for a reason that is given."""


_PAID: TypeAdapter[PaidMetrics | None] = TypeAdapter(PaidMetrics | None)


class Unwaivable(Refused):
    """No reason makes it pass."""


class NotLooked(Refused):
    """Another gate refuses already what this one would need."""


@dataclass(frozen=True)
class Offered:
    """A version that is to be served, as MLflow and its files have it.

    Attributes:
      tags: the version's.
      folder: where its files are, downloaded.
      release: None where they cannot be read.
      fault: why not.
    """

    source: str
    recommender: str
    number: str
    tags: Mapping[str, str]
    folder: Path
    release: Release | None
    fault: str = ""

    @property
    def model(self) -> str:
        return f"{self.source}.{self.recommender}"

    def __str__(self) -> str:
        return f"version {self.number} of {self.model}"

    @property
    def readable(self) -> Release:
        """Its release.

        Raises:
          NotLooked: there is none to be read.
        """
        if self.release is None:
            raise NotLooked("not looked at: the release's files cannot be read.")
        return self.release


@dataclass(frozen=True)
class Champion:
    """What is served now, to be compared with.

    Attributes:
      number: of the version in SOURCE.serving.
      origin: which version it is a copy of, as `SOURCE.RECOMMENDER/NUMBER`.
      release: None where its files cannot be read.
    """

    number: str
    origin: str
    release: Release | None
    signature: Any


@dataclass(frozen=True)
class Finding:
    """What a gate found.

    Attributes:
      waiver: why it does not stop the version although it refused; "" where nobody said.
      is_final: whether no reason would.
    """

    gate: Gate
    outcome: Outcome
    found: str
    waiver: str = ""
    is_final: bool = False


def look(gate: Gate, waiver: str, what: Callable[[], str]) -> Finding:
    """What a gate finds, whatever it raises."""
    try:
        return Finding(gate, "pass", what(), waiver)
    except NotLooked as reason:
        return Finding(gate, "-", str(reason), waiver)
    except JaliError as reason:
        is_final = _is_final(reason)
        outcome: Outcome = "waived" if waiver and not is_final else "refused"
        return Finding(gate, outcome, str(reason), waiver, is_final)


def all_of(*looks: Callable[[], Any]) -> list[Any]:
    """What each returns.

    Raises:
      JaliError: one of them did, the others too: a gate is waived as a whole, so it says first all that it finds. What
        no reason waives is no easier to waive beside what one does.
    """
    returned, found = [], []
    for each in looks:
        try:
            returned.append(each())
        except JaliError as reason:
            found.append(reason)
    if len(found) == 1:
        raise found[0]
    if found:
        kind = Unwaivable if any(map(_is_final, found)) else Refused
        raise kind(" Moreover: ".join(dict.fromkeys(map(str, found))))
    return returned


def _is_final(reason: JaliError) -> bool:
    return isinstance(reason, Unwaivable) or not isinstance(reason, Refused)  # a gate that could not look


@guarded("The gate verdict")
def verdict_gate(offered: Offered) -> str:
    """Only what is proven, and only if the tags, which anybody may edit, say what the release's files say."""
    promise = _promise(offered)
    if promise.verdict == "none":
        raise Unwaivable(f"{offered.recommender} promises nothing, and what promises nothing is never served.")
    metrics = _paid(offered)
    stated = {"source": offered.source, **promise.tags, **(metrics.tags if metrics else {})}
    differing = [name for name, text in stated.items() if offered.tags.get(name) != text]
    if offered.readable.about.get("recommender") != offered.recommender:
        differing.append("its recommender")
    if differing:
        raise Unwaivable(
            f"the registry and release.json disagree ({', '.join(differing)}): somebody changed the one or the other. "
            "Restore the tags of the version as its release.json has it, or release anew."
        )
    if promise.verdict != "proven":
        weakness = "; ".join(promise.weaknesses) or promise.reference
        raise Refused(
            f"it is {promise.verdict} and not proven: {weakness}. Say with --accept-unproven REASON why it is served "
            "all the same, or promote one that is proven."
        )
    return f"proven: ε={promise.epsilon_summary} for {promise.protects}; the tags say what release.json says."


def _promise(offered: Offered) -> Guarantee:
    if offered.release is None:
        raise Unwaivable(offered.fault)
    try:
        return Guarantee.model_validate(offered.release.about["guarantee"])
    except (KeyError, TypeError, ValidationError):
        reason = "its release.json does not say what was promised. Restore the file, or release anew."
    raise Unwaivable(reason)


def _paid(offered: Offered) -> PaidMetrics | None:
    kept = offered.readable.about.get(KEPT_AS)
    try:
        return _PAID.validate_json(json.dumps(kept), strict=True)
    except ValidationError:
        reason = "its release.json does not say what accuracy was paid for. Restore the file, or release anew."
    raise Unwaivable(reason)


@guarded("The gate budget")
def budget_gate(offered: Offered) -> str:
    """The version was paid for, in the ledger that paid for all the others, within the budget."""
    ledger, name = Ledger(current_state()), offered.tags.get(RESERVATION, "")
    entries, own = _charges(ledger, offered)
    *_, spent = all_of(
        partial(_require_published, offered, own),
        partial(require_same_ledger, offered.source, ledger),
        partial(ledger.require_remembered, offered.source),
        partial(_require_nobody_withdrew, offered, own, entries),
        partial(_require_within, ledger, offered.source, entries),
    )
    return f"paid for ({name[:6]}); {spent}"


def _charges(ledger: Ledger, offered: Offered) -> tuple[list[Entry], list[Entry]]:
    """All rows of the source, and those of the charge that paid for the version."""
    try:
        name, entries = offered.tags.get(RESERVATION), ledger.entries()
        of_source = [entry for entry in entries if entry.source == offered.source]
        return of_source, [entry for entry in entries if entry.reservation == name]
    except LedgerDoubted as reason:
        unread = str(reason)  # what a ledger would say that cannot be read, no reason waives
    raise Unwaivable(unread)


def _require_within(ledger: Ledger, source: str, entries: Sequence[Entry]) -> str:
    budget = ledger.budget(source)
    if budget is None:
        return f"nobody declared a budget (`jali ledger budget {shown(source)} --epsilon E`)."
    spent = budget.spent([entry.amount for entry in entries if entry.state in COUNTED])
    if spent > budget.most:
        raise Refused(
            f"{budget.amount(spent)} is spent or reserved on {shown(source)}, and its budget is {budget}. "
            "`jali ledger show` says on what; ask whoever keeps the budget."
        )
    return f"{budget.amount(spent)} is spent or reserved, of {budget}."


def _require_published(offered: Offered, own: Sequence[Entry]) -> None:
    if not own:
        raise Unwaivable(
            f"this ledger knows no charge that paid for it (its tag {RESERVATION}). Name the ledger that has it "
            "(JALI_LEDGER_URL), or promote a version that `jali run` released."
        )
    charge = own[0]
    if charge.state == "commit":
        raise Unwaivable(
            "the ledger does not know yet that it was published: its run was interrupted. The next `jali run` in the "
            "same folder puts it into the ledger."
        )
    if charge.state != "publish":
        raise Unwaivable(
            f"its charge is {charge.outcome}: what it cost is not in the ledger's sums, or nothing was to leave. "
            "Delete the version if nobody can have seen it, and release anew."
        )
    promise = _promise(offered)
    stated = (promise.verdict, promise.epsilon, promise.delta, promise.unit, promise.relation)
    is_of = (charge.source, charge.recommender, charge.outcome)
    is_this = is_of == (offered.source, offered.recommender, f"version {offered.number}")
    if not is_this or _as_charged(own) != (*stated, _paid(offered) is not None):
        raise Unwaivable(
            f"it was not this that was paid for: the ledger has its charge as one for {charge.outcome} of "
            f"{shown(charge.source)}.{charge.recommender}, {charge.verdict}, and what it cost. Somebody changed the "
            f"version's tag {RESERVATION}, or its release.json: restore it."
        )


def _as_charged(own: Sequence[Entry]) -> tuple[Any, ...]:
    """What the sealed rows of one bill say that a release promises: verdict, epsilon and so on, whether it has metrics.

    Of the charges of a batch with corrections the largest is what it promises.
    """
    of_release = [entry for entry in own if entry.purpose != "private metrics"]
    most = max(of_release, key=lambda entry: entry.claimed_epsilon or 0.0)
    with_metrics = len(of_release) < len(own)
    return most.verdict, most.claimed_epsilon, most.delta, most.unit, most.relation, with_metrics


def _require_nobody_withdrew(offered: Offered, own: Sequence[Entry], entries: Sequence[Entry]) -> None:
    since = [
        entry.outcome
        for entry in entries
        if (entry.purpose, entry.state, entry.recommender) == ("withdrawal", "publish", offered.recommender)
        and own
        and entry.seq > own[0].seq
    ]
    if since:
        raise Refused(
            f"somebody withdrew from the batches since it was released, and it still holds their ratings. Promote "
            f"{since[-1]}, which does not, or a newer one."
        )


@guarded("The gate metric")
def metric_gate(offered: Offered, champion: Champion | None, max_rmse: float | None) -> str:
    """Accuracy that was paid for and no other: to choose by figures that were not is a private choice."""
    paid = _paid(offered)
    if max_rmse is not None:
        if paid is None:
            raise Refused(
                "no accuracy was paid for, so nothing shows that --max-rmse holds. Release with --private-metrics E."
            )
        if not paid.high <= max_rmse:
            raise Refused(f"its RMSE is {paid.summary}: that it is at most {max_rmse:g} is not shown.")
        return f"RMSE {paid.summary}: at most {max_rmse:g}."
    if paid is None:
        return "no accuracy was paid for; not compared."
    before = PaidMetrics.of(champion.release) if champion and champion.release else None
    if before is None or champion is None:
        return f"RMSE {paid.summary}; there is nothing to compare it with."
    if paid.low > before.high:
        raise Refused(f"its RMSE is {paid.summary}, worse than {before.summary} of the champion {champion.origin}.")
    return f"RMSE {paid.summary}; not worse than {before.summary} of the champion {champion.origin}."


@guarded("The gate audit")
def audit_gate(offered: Offered) -> str:
    """No audit that exceeded its claim stands, and none was forgotten."""
    _, told = all_of(
        partial(require_all_noted, str(offered), offered.tags), partial(require_not_exceeded, offered.tags)
    )
    return told or f"within its claim in an audit of {offered.tags[RUNS]} runs."


@guarded("The gate code")
def code_gate(offered: Offered) -> str:
    """What would run wherever it is served is what this Jali ships."""
    return require_own_code(offered.folder)


@guarded("The gate load")
def load_gate(offered: Offered, code: Finding, process: CleanProcess) -> str:
    """It loads and answers where nothing of Jali is."""
    release = offered.readable
    if code.outcome == "refused":
        raise NotLooked("not tried: to load it would run its code.")
    requests = made_up_requests(release)
    return require_same_answers(release, requests, process.ask(offered.folder, requests))


@guarded("The gate schema")
def schema_gate(offered: Offered, champion: Champion | None) -> str:
    """Whoever asks the champion can ask it: the same fields in and out, the same scale."""
    release = offered.readable
    all_of(
        partial(_require_same_fields, signature_of(offered.folder), champion),
        partial(_require_same_scale, release, champion),
    )
    if champion is None or champion.release is None:
        return f"format {FORMAT}, {len(release.items)} items; nothing is served yet."
    before = champion.release
    added, gone = len(release.row_of.keys() - before.row_of.keys()), len(before.row_of.keys() - release.row_of.keys())
    return f"fields and scale of the champion; {len(release.items)} items: {added} are new, {gone} are gone."


def _require_same_fields(signature: object, champion: Champion | None) -> None:
    if not isinstance(signature, dict) or not signature.get("inputs") or not signature.get("outputs"):
        raise Refused("its MLmodel does not say what it takes and gives. Restore the file, or release anew.")
    if champion is not None and signature != champion.signature:
        raise Refused(
            f"it takes or gives other fields than the champion {champion.origin}: whoever asks may be answered with an "
            "error. Change what asks, and say so with --waive schema=REASON."
        )


def _require_same_scale(release: Release, champion: Champion | None) -> None:
    if champion is None:
        return
    before = champion.release
    if before is None:
        raise Refused(
            f"the champion's files cannot be read, so nothing shows that it is asked alike. Restore those of "
            f"{champion.origin}."
        )
    if (release.low, release.high, release.step) != (before.low, before.high, before.step):
        raise Refused(
            f"its scale is {_scale(release)}, and that of the champion {champion.origin} is {_scale(before)}: ratings "
            "that are sent now would be refused. Change what asks, and say so with --waive schema=REASON."
        )


def _scale(release: Release) -> str:
    return f"{release.low:g}:{release.high:g}:{release.step:g}"


@guarded("Looking at what was found since")
def found_since(offered: Offered) -> str:
    """What audits and the ledger know by now against a version that passed its gates once; "" for nothing."""
    findings = (
        look("audit", "", partial(audit_gate, offered)),
        look("budget", "", partial(_require_its_batches, offered)),
    )
    return " ".join(finding.found for finding in findings if finding.outcome == "refused")


@guarded("The gate budget")
def _require_its_batches(offered: Offered) -> str:
    """The charge that paid for it is there, and nobody withdrew from what it holds."""
    entries, own = _charges(Ledger(current_state()), offered)
    if not own:
        raise Unwaivable(f"this ledger knows no charge that paid for it (its tag {RESERVATION}).")
    _require_nobody_withdrew(offered, own, entries)
    return ""


look_task = unstored_task(look, "gate", run_name="gate {gate}")
