"""Auditing: find the version, run the fits on made-up data, keep what came out in MLflow. Nothing private is read."""

from __future__ import annotations

import hashlib
import json
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version as version_of
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from models.audit.audit import Audited, audit
from models.audit.neighbours import Neighbours
from models.batch import IN_ONE_BATCH
from models.candidate import Candidate
from models.errors import EnvironmentFault, Refused, SpecError, shown
from models.privacy.gaussian import gaussian_epsilon
from models.privacy.specification import Relation
from models.ratings import RatingScale
from models.release import ARRAYS_FILE, RELEASE_FILE, Release
from tasks.audit_figure import audit_figure
from tasks.audit_history import EXCEEDED, RESULT, UNCLAIMED, WITHIN, history_of, told
from tasks.figures import save_figures
from tasks.guard import guarded
from tasks.progress import go_on, stage, step
from tasks.registry import versions_of
from tasks.released import release_of
from tasks.state import current_state
from tasks.tracking import NOTE, as_params, experiment_id, open_tracking
from tasks.unstored import unstored_task
from tasks.views import AUDITS, AUDITS_VIEWS

if TYPE_CHECKING:
    from mlflow import MlflowClient

AUDITS_NOTE = (
    "Audits: attempts to show that a recommender loses more than it claims. Each run fitted made-up ratings many "
    "times; nothing private was read. `audit.epsilon_shown` above `audit.epsilon_claimed` is a proof that the claim "
    "does not hold (at the run's confidence); below it is no proof that it does. The figure under *Artifacts* shows "
    "both."
)

PROGRESS_STEPS = 100

PAIR_FILE = "pair.json"
"""The neighbours, so that another audit can try them again."""


@dataclass(frozen=True)
class Version:
    """A version in the registry."""

    model: str
    number: str
    source: str

    def __str__(self) -> str:
        return f"version {self.number} of {self.model}"


@dataclass(frozen=True)
class Subject:
    """What is audited; every part of it is public.

    Attributes:
      relation: which data sets are compared; not always those of the promise.
      version: where it was released; None where it was only described.
      passed_over: the versions there are where it was only described; "" where there are none.
      pair: neighbours of an audit that exceeded and stands, to be tried again; None where some are to be searched.
    """

    candidate: Candidate
    scale: RatingScale
    relation: Relation
    version: Version | None = None
    passed_over: str = ""
    pair: Neighbours | None = None

    @property
    def is_claimed(self) -> bool:
        """Whether its promise says anything about these data sets; what is removed and added was changed."""
        return self.candidate.guarantee.relation in (self.relation, "add_or_remove")

    @property
    def is_of_batches(self) -> bool:
        return IN_ONE_BATCH in self.candidate.guarantee.conditions


@dataclass(frozen=True)
class Trial:
    """An audit that was run, and how long it took."""

    subject: Subject
    audited: Audited
    seconds: float

    @property
    def runs_per_minute(self) -> float:
        """Of all runs: to find the worst pair, and to judge it."""
        return 60 * (self.audited.n_runs + self.audited.n_search_runs) / self.seconds

    @property
    def result(self) -> str:
        if not self.audited.exceeded:
            return WITHIN
        return EXCEEDED if self.subject.is_claimed else UNCLAIMED

    @property
    def epsilon_shown(self) -> float:
        """Where Gaussian noise is charged, what the mu that was shown makes of it at the claim's delta."""
        claim, shown = self.audited.claim, self.audited.shown
        epsilon = max(shown.epsilon, self._epsilon_of(shown.gaussian or 0.0))
        if self.audited.exceeded:  # the noise keeps up to one part in ten thousand less than is claimed of it
            epsilon = max(epsilon, claim.epsilon * self.audited.share)
        return epsilon

    @property
    def epsilon_of_the_worst(self) -> float:
        """What so many runs show, about, of a mechanism that hides exactly as much as is claimed."""
        worst = self.audited.of_the_worst
        return worst if self.audited.claim.gaussian is None else self._epsilon_of(worst)

    def _epsilon_of(self, mu: float) -> float:
        claim = self.audited.claim
        return gaussian_epsilon(mu, claim.delta) if claim.gaussian is not None and mu > 0 else 0.0

    @property
    def shown_in_words(self) -> str:
        return told(self.epsilon_shown, self.audited.claim.epsilon, self.audited.exceeded)

    @property
    def name(self) -> str:
        """Of its MLflow run."""
        version, claimed = self.subject.version, f"{self.audited.claim.epsilon:.4g}"
        what = self.subject.candidate.label if version is None else f"{version.model} v{version.number}"
        return f"{what}: {self.result}, {self.shown_in_words} of {claimed}"

    @property
    def pair_text(self) -> str:
        return json.dumps(asdict(self.audited.neighbours), default=int)  # numpy's integers

    @property
    def pair_checksum(self) -> str:
        return hashlib.sha256(self.pair_text.encode()).hexdigest()[:8]


@guarded("Reading the registry")
def find_version(recommender: str, source: str | None, number: int | None) -> Version | None:
    """The version to audit: as named, or the newest of the only source that has one; None where nothing has.

    Raises:
      SpecError: there is none as named, or several sources have one and none is named.
    """
    numbers: dict[str, list[int]] = {}
    for version in versions_of(open_tracking(current_state()), recommender):
        numbers.setdefault(version.tags["source"], []).append(int(version.version))
    if not numbers and source is None and number is None:
        return None
    chosen = _source(recommender, sorted(numbers), source)
    if number is not None and number not in numbers[chosen]:
        raise SpecError(
            f"{chosen}.{recommender} has no version {number}; the newest is {max(numbers[chosen])}. Leave --version "
            "out for that one."
        )
    return Version(f"{chosen}.{recommender}", str(number or max(numbers[chosen])), chosen)


def _source(recommender: str, known: list[str], told: str | None) -> str:
    described = "or say with --epsilon what to audit, without a version"
    if told in known:
        return str(told)
    have = ", ".join(map(shown, known))
    if told is None and len(known) == 1:
        return known[0]
    if told is None and known:
        raise SpecError(
            f"several sources have a version of {recommender}: {have}. Name one with --source, {described}."
        )
    if not known:
        raise SpecError(f"no source has a version of {recommender} here. Release one (jali run), {described}.")
    raise SpecError(f"{shown(told)} has no version of {recommender} here; {have} has. Name that, {described}.")


@guarded("Reading the registry")
def versions_known(recommender: str) -> str:
    """The newest version of every source, in words; "" where there is none."""
    newest: dict[str, int] = {}
    for version in versions_of(open_tracking(current_state()), recommender):
        newest[version.name] = max(newest.get(version.name, 0), int(version.version))
    return " or ".join(f"version {number} of {shown(name)}" for name, number in sorted(newest.items()))


@guarded("Reading the registry")
def released_subject(version: Version, recommender: str, relation: Relation | None) -> Subject:
    """What a version was released as, read from its release.json.

    Args:
      relation: None: that of its promise.

    Raises:
      EnvironmentFault: its files are damaged or gone, another program wrote them, or its tags say otherwise.
    """
    release = _release_of(version)
    try:
        scale = RatingScale(low=release.low, high=release.high, step=release.step)
        candidate = Candidate.of(release)
        subject = Subject(candidate, scale, relation or candidate.specification.relation, version)
        reason = _disagreement(subject, recommender)
    except SpecError:
        reason = "this Jali does not know its recommender or its settings; a newer one released it"
    except (KeyError, TypeError, AttributeError, ValidationError):
        reason = "its release.json does not say what was released"
    if reason:
        raise EnvironmentFault(
            f"{version}: {reason}. Audit it with the Jali that released it, from files as it wrote them."
        )
    return replace(subject, pair=_standing_pair(subject, version))


def _release_of(version: Version) -> Release:
    try:
        return release_of(version.model, version.number)
    except EnvironmentFault as fault:
        reason = str(fault)
    raise EnvironmentFault(
        f"{reason} Its {RELEASE_FILE} and {ARRAYS_FILE} say what to audit: restore them from a backup, or "
        "describe the recommender with --epsilon."
    )


def _standing_pair(subject: Subject, version: Version) -> Neighbours | None:
    """What exceeded this version's claim in an audit that stands, if its run still has it."""
    client = open_tracking(current_state())
    try:
        history = history_of(client.get_model_version(version.model, version.number).tags)
    except Refused:  # said when this audit is to be noted
        return None
    standing = [entry for entry in history.standing if entry.relation == subject.relation]
    return _pair_of(client, max(standing, key=lambda entry: entry.runs).run) if standing else None


def _pair_of(client: MlflowClient, run_id: str) -> Neighbours | None:
    from mlflow.exceptions import MlflowException

    with TemporaryDirectory(prefix="jali-") as folder:
        try:
            file = Path(client.download_artifacts(run_id, PAIR_FILE, folder))
            return Neighbours(**{name: _fixed(value) for name, value in json.loads(file.read_text()).items()})
        except (MlflowException, OSError, ValueError, TypeError, AttributeError):
            return None


def _fixed(value: Any) -> Any:
    """JSON's lists as tuples."""
    return tuple(map(_fixed, value)) if isinstance(value, list) else value


def _disagreement(subject: Subject, recommender: str) -> str:
    """Between a version's files, its tags and this program; "" where there is none."""
    candidate, version = subject.candidate, subject.version
    assert version is not None
    tags = open_tracking(current_state()).get_model_version(version.model, version.number).tags
    stated = candidate.guarantee
    if candidate.name != recommender or stated.epsilon_summary != tags.get("privacy.epsilon"):
        return "its release.json and the registry disagree about what it is or claims"
    if not subject.is_of_batches and candidate.recommender.promise(candidate.specification).epsilon != stated.epsilon:
        return "this Jali would promise another epsilon for its settings, so another released it"
    return ""


@guarded("The audit")
def run_audit(subject: Subject, n_runs: int, confidence: float) -> Trial:
    """Fit made-up neighbours with exact noise, as a release does, and bound epsilon from below.

    Raises:
      SpecError: so few runs could not even show that a release which tells all exceeds the claim.
    """
    began, progress = time.perf_counter(), _Hundredths()
    audited = audit(
        subject.candidate.recommender,
        subject.candidate.specification,
        relation=subject.relation,
        n_runs=n_runs,
        confidence=confidence,
        scale=subject.scale,
        pair=subject.pair,
        begin=progress.begin,
        count=progress.count,
    )
    return Trial(subject, audited, time.perf_counter() - began)


class _Hundredths:
    """Tells how far each part of an audit is, a hundredth at a time: a word about every run would outlast it."""

    def begin(self, text: str, n_runs: int) -> None:
        stage(text, PROGRESS_STEPS)
        self._n_runs, self._done = n_runs, 0

    def count(self, n_runs: int) -> None:
        go_on()
        before = PROGRESS_STEPS * self._done // self._n_runs
        self._done += n_runs
        for _ in range(PROGRESS_STEPS * self._done // self._n_runs - before):
            step()


@guarded("Logging to MLflow")
def log_audit(trial: Trial, description: str) -> str:
    """One run in the experiment `audits`; returns its id. One that cannot be finished is marked as failed."""
    state = current_state()
    client = open_tracking(state)
    run = client.create_run(
        experiment_id(client, AUDITS, AUDITS_NOTE, state, AUDITS_VIEWS),
        start_time=int((time.time() - trial.seconds) * 1000),  # MLflow then shows the seconds of the audit
        run_name=trial.name,
        tags={**_run_tags(trial), NOTE: description},
    )
    run_id = str(run.info.run_id)
    try:
        _log(client, run_id, trial)
    except BaseException:
        with suppress(Exception):  # what broke the log may well break this, too; the first is what is told
            client.set_terminated(run_id, "FAILED")
        raise
    return run_id


def _log(client: MlflowClient, run_id: str, trial: Trial) -> None:
    from mlflow.entities import Metric

    audited, subject = trial.audited, trial.subject
    metrics = [Metric(name, value, 0, 0) for name, value in _numbers(trial).items()]
    params = {
        "audit.relation": subject.relation,
        "audit.runs": str(audited.n_runs),
        "audit.confidence": f"{audited.confidence:g}",
    }
    client.log_batch(run_id, metrics, as_params({**subject.candidate.params, **params}))
    figure = audit_figure(subject.candidate.label, audited, trial.epsilon_shown)
    with TemporaryDirectory(prefix="jali-") as folder:
        for path in save_figures({"claimed_against_shown": figure}, Path(folder)):
            client.log_artifact(run_id, str(path), "figures")
        Path(folder, PAIR_FILE).write_text(trial.pair_text)
        client.log_artifact(run_id, str(Path(folder, PAIR_FILE)))
    client.set_terminated(run_id, "FINISHED")


def _run_tags(trial: Trial) -> dict[str, str]:
    subject, audited = trial.subject, trial.audited
    released = {"version": str(subject.version), "source": subject.version.source} if subject.version else {}
    return {
        "recommender": subject.candidate.name,
        "verdict": subject.candidate.guarantee.verdict,
        RESULT: trial.result,
        "audit.neighbours": audited.neighbours.what,
        "audit.statistic": audited.shown.statistic,
        "jali": version_of("jali"),
        **released,
    }


def _numbers(trial: Trial) -> dict[str, float]:
    audited = trial.audited
    numbers = {
        "audit.epsilon_claimed": audited.claim.epsilon,
        "audit.epsilon_shown": trial.epsilon_shown,
        "audit.share": audited.share,
        "audit.exceeded": float(audited.exceeded),
        "audit.runs_per_minute": trial.runs_per_minute,
        "audit.seconds": trial.seconds,
    }
    if audited.claim.gaussian is not None and audited.shown.gaussian is not None:
        numbers |= {
            "audit.mu_claimed": audited.claim.gaussian,
            "audit.mu_shown": audited.shown.gaussian,
            "audit.epsilon_shown_by_any_noise": audited.shown.epsilon,
        }
    return numbers


find_version_task = unstored_task(find_version, "find the version")
versions_known_task = unstored_task(versions_known, "look for versions")
released_subject_task = unstored_task(released_subject, "read what was released")
run_audit_task = unstored_task(run_audit, "audit")
log_audit_task = unstored_task(log_audit, "log the audit")
