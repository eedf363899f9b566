"""Auditing: find the version, run the fits on made-up data, keep what came out in MLflow. Nothing private is read."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import ValidationError

from models.audit.audit import Audited, audit
from models.batch import IN_ONE_BATCH
from models.candidate import Candidate
from models.errors import EnvironmentFault, SpecError, shown
from models.privacy.gaussian import gaussian_epsilon
from models.privacy.specification import Relation
from models.ratings import RatingScale
from tasks.audit_figure import audit_figure
from tasks.audits import RESULT, result_of
from tasks.figures import save_figures
from tasks.guard import guarded
from tasks.progress import go_on, stage, step
from tasks.registry import versions_of
from tasks.released import release_of
from tasks.state import current_state
from tasks.tracking import as_params, experiment_id, open_tracking
from tasks.unstored import unstored_task

AUDITS = "audits"
"""The experiment; flows/names.py keeps it from being a source's."""

AUDITS_NOTE = (
    "Audits: attempts to show that a recommender loses more than it claims. Each run fitted made-up ratings many "
    "times; nothing private was read. `audit.epsilon_shown` above `audit.epsilon_claimed` is a proof that the claim "
    "does not hold (at the run's confidence); below it is no proof that it does. The figure under *Artifacts* shows "
    "both."
)

PROGRESS_STEPS = 100


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
    """

    candidate: Candidate
    scale: RatingScale
    relation: Relation
    version: Version | None = None

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
    def epsilon_shown(self) -> float:
        """Where Gaussian noise is charged, what the mu that was shown makes of it at the claim's delta."""
        claim, shown = self.audited.claim, self.audited.shown
        if claim.gaussian is None or not shown.gaussian:
            return shown.epsilon
        return max(shown.epsilon, gaussian_epsilon(shown.gaussian, claim.delta))

    @property
    def share(self) -> float:
        """Of the claim that was shown."""
        return self.epsilon_shown / self.audited.claim.epsilon


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
def released_subject(version: Version, recommender: str, relation: Relation | None) -> Subject:
    """What a version was released as, read from its release.json.

    Args:
      relation: None: that of its promise.

    Raises:
      EnvironmentFault: its files are damaged or gone, another program wrote them, or its tags say otherwise.
    """
    release = release_of(version.model, version.number)
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
    return subject


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
def log_audit(trial: Trial) -> str:
    """One run in the experiment `audits`; returns its id."""
    from mlflow.entities import Metric

    state, audited, subject = current_state(), trial.audited, trial.subject
    client = open_tracking(state)
    run = client.create_run(
        experiment_id(client, AUDITS, AUDITS_NOTE, state),
        start_time=int((time.time() - trial.seconds) * 1000),  # MLflow then shows the seconds of the audit
        run_name=subject.candidate.label,
        tags=_run_tags(trial),
    )
    metrics = [Metric(name, value, 0, 0) for name, value in _numbers(trial).items()]
    params = {
        "audit.relation": subject.relation,
        "audit.runs": str(audited.n_runs),
        "audit.confidence": f"{audited.confidence:g}",
    }
    client.log_batch(run.info.run_id, metrics, as_params({**subject.candidate.params, **params}))
    with TemporaryDirectory(prefix="jali-") as folder:
        for path in save_figures(
            {"claimed_against_shown": audit_figure(subject.candidate.label, audited, trial.epsilon_shown)}, Path(folder)
        ):
            client.log_artifact(run.info.run_id, str(path), "figures")
    client.set_terminated(run.info.run_id, "FINISHED")
    return str(run.info.run_id)


def _run_tags(trial: Trial) -> dict[str, str]:
    subject, audited = trial.subject, trial.audited
    released = {"version": str(subject.version), "source": subject.version.source} if subject.version else {}
    return {
        "recommender": subject.candidate.name,
        "verdict": subject.candidate.guarantee.verdict,
        RESULT: result_of(trial),
        "audit.neighbours": audited.neighbours.what,
        "audit.statistic": audited.shown.statistic,
        **released,
    }


def _numbers(trial: Trial) -> dict[str, float]:
    audited = trial.audited
    numbers = {
        "audit.epsilon_claimed": audited.claim.epsilon,
        "audit.epsilon_shown": trial.epsilon_shown,
        "audit.share": trial.share,
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
released_subject_task = unstored_task(released_subject, "read what was released")
run_audit_task = unstored_task(run_audit, "audit")
log_audit_task = unstored_task(log_audit, "log the audit")
