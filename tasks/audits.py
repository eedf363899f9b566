"""Noting audits on a version, and the gate that reads what is noted."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from shlex import quote
from typing import TYPE_CHECKING

from pydantic import ValidationError

from models.errors import EnvironmentFault, Refused
from tasks.audit_history import EXCEEDED, HISTORY, RESULT, TIMES, Entry, History, history_of
from tasks.guard import LOST, guarded
from tasks.model_card import refresh_card
from tasks.registered import serving_name
from tasks.registry import champion_made_of
from tasks.state import current_state
from tasks.tracking import open_tracking
from tasks.unstored import unstored_task
from tasks.views import AUDITS

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from tasks.auditing import Trial, Version

PATIENCE = 20.0
"""Seconds that another audit may take to note what it found."""
PAUSE = 0.1
MOST_RUNS = 1000
"""Audits of one version that are counted."""


def entry_of(trial: Trial, run_id: str, at: datetime) -> Entry:
    """What a version remembers of an audit."""
    audited = trial.audited
    return Entry.model_validate(
        {
            "relation": audited.relation,
            "runs": audited.n_runs,
            "confidence": audited.confidence,
            "claimed": audited.claim.epsilon,
            "shown": trial.epsilon_shown,
            "exceeded": audited.exceeded,
            "run": run_id,
            "at": f"{at:%Y-%m-%d %H:%M}",
            "pair": trial.pair_checksum,
        }
    )


@guarded("Noting the audit on the version")
def note_audit(version: Version, trial: Trial, run_id: str) -> str:
    """Write down on the version what the audit showed; returns in a sentence what it says from now on.

    Raises:
      Refused: what was noted before is spoilt.
      EnvironmentFault: MLflow does not take it, or another audit does not come to an end of noting.
    """
    from mlflow.exceptions import MlflowException

    with _one_at_a_time():
        client = open_tracking(current_state())
        try:
            return _noted(client, version, entry_of(trial, run_id, datetime.now(UTC)))
        except MlflowException as error:
            if error.error_code in LOST:
                raise
            reason = error.error_code
    raise EnvironmentFault(
        f"MLflow did not take what was found as tags of {version} ({reason}). See that the version is still there, "
        "and audit it again."
    )


def _noted(client: MlflowClient, version: Version, entry: Entry) -> str:
    before = history_of(client.get_model_version(version.model, version.number).tags)
    after = before.after(entry)
    _write(client, version, after)
    return _sentence(version, entry, after) + _with_card(client, version) + _if_served(client, version, after)


def _if_served(client: MlflowClient, version: Version, after: History) -> str:
    """What to do about it, where what exceeded is what people are answered with."""
    from mlflow.exceptions import MlflowException

    if not after.standing:
        return ""
    with suppress(MlflowException):  # it is noted all the same
        number = champion_made_of(client, version.source, f"{version.model}/{version.number}")
        if number is not None:
            return (
                f" It is served: version {number} of {serving_name(version.source)}, the champion, is a copy of it. "
                f"`jali rollback --source {quote(version.source)}` takes it back."
            )
    return ""


def _with_card(client: MlflowClient, version: Version) -> str:
    """Have the version's card tell it, too; returns what to say where it does not, which keeps no gate open."""
    from mlflow.exceptions import MlflowException

    try:
        refresh_card(client, version.model, version.number)
    except (EnvironmentFault, MlflowException, ValidationError, KeyError):
        return " Its description could not be rewritten, and still tells what it told before."
    return ""


def _sentence(version: Version, entry: Entry, after: History) -> str:
    leading = after.leading
    assert leading is not None
    if after.standing and not entry.exceeded:
        return (
            f"Counted on {version}, whose result stays `exceeded`: the audit of {leading.at} UTC stands until one of "
            f"{leading.runs:,} runs or more, with --confidence {leading.confidence:g} or less and the same relation, "
            "stays within."
        )
    if leading.exceeded == entry.exceeded and leading.runs > entry.runs:
        return f"Counted on {version}, whose tags go on telling of the audit of {leading.runs:,} runs."
    return f"Noted on {version}, in its tags audit.*."


def _write(client: MlflowClient, version: Version, history: History) -> None:
    """The truth first. What is cut off after it contradicts itself, and the gate is shut.

    Of the tags for people a bad result is written first and a good one last: they never look better than it is.
    """
    tags = history.tags
    is_bad = bool(history.standing)
    client.set_model_version_tag(version.model, version.number, HISTORY, history.text)
    for name in sorted(tags, key=lambda name: (name == RESULT) != is_bad):
        client.set_model_version_tag(version.model, version.number, name, tags[name])


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """What two audits read and write at once would lack one of them. Whoever audits elsewhere is not waited for."""
    lock = os.open(current_state().folder / "audits.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _wait_for(lock)
        yield
    finally:
        os.close(lock)


def _wait_for(lock: int) -> None:
    give_up = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > give_up:
                break
            time.sleep(PAUSE)
        else:
            return
    raise EnvironmentFault(
        f"another audit has been noting what it found for {PATIENCE:g} seconds. See what keeps it, and audit again."
    )


def require_not_exceeded(tags: Mapping[str, str]) -> str | None:
    """Raise Refused if an audit that exceeded the claim stands, or if the tags are not as audits wrote them.

    Args:
      tags: the version's.
    Returns:
      What whoever goes on should be told all the same; None where there is nothing.
    """
    history = history_of(tags)
    leading, found = history.leading, []
    if leading is not None and leading.exceeded:
        found.append(
            f"a version that exceeded its claim in an audit is not promoted: on {leading.at} UTC "
            f"ε={leading.shown_in_words} was shown ({leading.confidence:g} confidence, {leading.runs} runs), and "
            f"ε={leading.claimed:.4g} is claimed. Mend the recommender and release anew; if you think it was chance, "
            f"audit the version again, with --runs {leading.runs} or more, --relation {leading.relation} and no more "
            "confidence."
        )
    if any(tags.get(name) != text for name, text in history.tags.items()) or (leading is None and _is_tagged(tags)):
        found.append(
            f"the version's tags audit.* contradict {HISTORY}, which they are derived from: an audit was cut off while "
            "it noted them, or somebody changed them. Audit the version again."
        )
    if found:
        raise Refused(" ".join(found))
    if leading is None:
        return "This version was never audited; `jali audit` does that."
    if history.times_exceeded:
        return (
            f"Of {tags[TIMES]} audits of this version {history.times_exceeded} exceeded its claim, and were taken back "
            "by others that tried as hard: look at them in the experiment `audits` before you rely on it."
        )
    return None


def require_all_noted(version: str, tags: Mapping[str, str]) -> None:
    """Raise Refused if MLflow has more audits that exceeded than the version's tags know of: tags can be deleted.

    Args:
      version: as its audits call it.
    """
    from mlflow.entities import ViewType

    client = open_tracking(current_state())
    experiment = client.get_experiment_by_name(AUDITS)
    if experiment is None:
        return
    theirs = f"tags.version = '{version}' and tags.`{RESULT}` = '{EXCEEDED}'"
    n_exceeded = len(client.search_runs([experiment.experiment_id], theirs, ViewType.ALL, max_results=MOST_RUNS))
    if n_exceeded > history_of(tags).times_exceeded:
        raise Refused(
            f"the experiment `{AUDITS}` has {n_exceeded} audits of the version that exceeded its claim, and its tags "
            f"know of {history_of(tags).times_exceeded}: somebody changed the tags, or an audit could not note what it "
            f"found. Look at the audits, and restore the tag {HISTORY} or release anew."
        )


def _is_tagged(tags: Mapping[str, str]) -> bool:
    return any(name.startswith("audit.") for name in tags)


note_audit_task = unstored_task(note_audit, "note the audit")
