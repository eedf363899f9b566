"""What audits leave on a version, and the gate that reads it.

An audit run again until it passes must show: beside the latest result, a version keeps how many audits it had and
how many of them exceeded its claim. And a result that exceeded stands until an audit that tried at least as hard,
on neighbours of the same kind, stays within.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from models.errors import Refused, quoted
from tasks.guard import guarded
from tasks.state import current_state
from tasks.tracking import open_tracking
from tasks.unstored import unstored_task

if TYPE_CHECKING:
    from tasks.auditing import Trial, Version

RESULT, WITHIN, EXCEEDED = "audit.result", "within", "exceeded"
CLAIMED, SHOWN, CONFIDENCE, RUNS = "audit.epsilon_claimed", "audit.epsilon_shown", "audit.confidence", "audit.runs"
RELATION = "audit.relation"
RUN, AT, TIMES, TIMES_EXCEEDED = "audit.run", "audit.at", "audit.times", "audit.times_exceeded"
"""Tags of a version. The first line is the verdict, the second what it rests on, the third where it is and what was
before; MLflow's run holds the rest."""


def result_of(trial: Trial) -> str:
    return EXCEEDED if trial.audited.exceeded else WITHIN


@guarded("Noting the audit on the version")
def note_audit(version: Version, trial: Trial, run_id: str) -> str:
    """Tag the version with what the audit showed; returns in a sentence what it says from now on.

    One tag is written at a time: a bad result goes first and a good one last, so that what is cut off between them
    never looks better than it is.
    """
    client = open_tracking(current_state())
    before = client.get_model_version(version.model, version.number).tags
    tags = audit_tags(trial, run_id, before, datetime.now(UTC))
    for name in sorted(tags, key=lambda name: (name == RESULT) != trial.audited.exceeded):
        client.set_model_version_tag(version.model, version.number, name, tags[name])
    if RESULT in tags:
        return f"Noted on {version}, in its tags audit.*."
    return (
        f"Counted on {version}, whose result stays `{EXCEEDED}`: that audit of {before.get(RUNS, '?')} runs tried "
        "harder. Only one with as many runs, the same relation and no greater confidence can stand against it."
    )


def audit_tags(trial: Trial, run_id: str, before: Mapping[str, str], at: datetime) -> dict[str, str]:
    """The tags that a version gets from `trial`, given those it had: counts alone where an earlier result stands."""
    audited = trial.audited
    times = {
        TIMES: str(_count(before, TIMES) + 1),
        TIMES_EXCEEDED: str(_count(before, TIMES_EXCEEDED) + audited.exceeded),
    }
    if before.get(RESULT) == EXCEEDED and not audited.exceeded and not _tried_as_hard(trial, before):
        return times
    return {
        RESULT: result_of(trial),
        CLAIMED: f"{audited.claim.epsilon:.4g}",
        SHOWN: f"{trial.epsilon_shown:.4g}",
        CONFIDENCE: f"{audited.confidence:g}",
        RUNS: str(audited.n_runs),
        RUN: run_id,
        AT: f"{at:%Y-%m-%d %H:%M}",
        RELATION: audited.relation,
        **times,
    }


def _tried_as_hard(trial: Trial, before: Mapping[str, str]) -> bool:
    """Whether so many runs, read so boldly, could contradict the audit that `before` is about."""
    audited = trial.audited
    try:
        needs_no_more = float(before[CONFIDENCE]) >= audited.confidence
    except (KeyError, ValueError):
        needs_no_more = False
    return needs_no_more and audited.n_runs >= _count(before, RUNS) and audited.relation == before.get(RELATION)


def require_not_exceeded(tags: Mapping[str, str]) -> str | None:
    """Raise Refused if a version's latest audit exceeded its claim.

    Args:
      tags: the version's.
    Returns:
      What whoever goes on should be told all the same; None where there is nothing.
    """
    result = tags.get(RESULT)
    if result is None:
        return "This version was never audited; `jali audit` does that."
    if result == EXCEEDED:
        found = {name: tags.get(name, "?") for name in (SHOWN, CLAIMED, CONFIDENCE, RUNS, AT)}
        raise Refused(
            f"a version whose latest audit exceeded its claim is not promoted: on {found[AT]} UTC ε={found[SHOWN]} was "
            f"shown ({found[CONFIDENCE]} confidence, {found[RUNS]} runs), and ε={found[CLAIMED]} is claimed. Mend the "
            "recommender and release anew; if you think it was chance, audit the version again, with more runs and the "
            "same relation."
        )
    if result != WITHIN:
        raise Refused(f"the version's tag {RESULT} is {quoted(result)}, which no audit wrote. Audit the version again.")
    exceeded = _count(tags, TIMES_EXCEEDED)
    if exceeded:
        return (
            f"The latest of {_count(tags, TIMES)} audits of this version stayed within its claim, and {exceeded} "
            "exceeded it: look at them in the experiment `audits` before you rely on it."
        )
    return None


def _count(tags: Mapping[str, str], name: str) -> int:
    """A number that we wrote, and anybody may have changed since."""
    text = tags.get(name, "")
    return int(text) if text.isdecimal() else 0


note_audit_task = unstored_task(note_audit, "note the audit")
