"""`jali audit`: try to show that a recommender loses more privacy than it claims. No private rating is read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from prefect import flow
from pydantic import AfterValidator, BaseModel, Field, ValidationError

from flows.audit_view import description
from flows.exits import remember_termination
from flows.job import Privacy, specification_of
from flows.names import of_a_source, source_name
from flows.options import assigned, policy_read
from flows.refusals import named_refusals
from models.audit.audit import DEFAULT_RUNS, FIVE_STARS, require_conclusive
from models.audit.claim import MOST_RUNS
from models.candidate import Candidate
from models.errors import JaliError, SpecError, quoted, shown
from models.index import first_problem, make_recommender
from models.recommender import Recommender
from tasks.auditing import (
    Subject,
    Trial,
    find_version_task,
    log_audit_task,
    released_subject_task,
    run_audit_task,
    versions_known_task,
)
from tasks.audits import note_audit_task
from tasks.progress import stage
from tasks.state import current_state
from tasks.tracking import require_tracking_task
from tasks.unstored import whole


class Request(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """What `jali audit` is asked: names and settings only, because Prefect stores and shows it."""

    recommender: str
    settings: dict[str, Any] = Field(default_factory=dict)
    privacy: Privacy | None = None
    """None: what a version was released under."""
    relation: Literal["add_or_remove", "replace_value"] | None = None
    """None: that of the promise."""
    runs: Annotated[int, Field(ge=1, le=MOST_RUNS)] = DEFAULT_RUNS
    confidence: Annotated[float, Field(gt=0.5, lt=1)] = 0.95
    source: Annotated[str, AfterValidator(source_name)] | None = None
    version: Annotated[int, Field(ge=1)] | None = None


@dataclass(frozen=True)
class Done:
    """An audit, and what became of it.

    Attributes:
      run_id: MLflow's, of the run that keeps it; "" where it could not be logged.
      noted: what its version says from now on; None where nothing was noted.
      faults: why it could not be logged or noted, a sentence each.
    """

    trial: Trial
    run_id: str = ""
    noted: str | None = None
    faults: tuple[str, ...] = ()


RULES = {
    "runs": f"--runs is a whole number from 1 to {MOST_RUNS:,}",
    "confidence": "--confidence is between 0.5 and 1 (95% is 0.95)",
    "relation": "--relation is add_or_remove or replace_value",
    "version": "--version is a whole number, 1 or more",
}
"""Of what is one option each, in the command line's words."""


def make_request(
    recommender: str, privacy: dict[str, str | None], assignments: list[str], other: dict[str, str | None]
) -> Request:
    """What was asked, understood.

    Args:
      privacy: epsilon, policy (a path, or `default`), unit and delta.
      assignments: `RECOMMENDER.SETTING=VALUE`.
      other: relation, runs, confidence, source and version.

    Raises:
      SpecError: something is unknown, out of range or contradicts itself, or there is nothing to audit.
    """
    described = {name: value for name, value in privacy.items() if value is not None}
    settings = assigned(assignments)
    told = {name: value for name, value in other.items() if value is not None}
    recommender, told = of_a_source(recommender, told)
    if (described or settings) and {"source", "version"} & set(told):
        raise SpecError(
            "--source and --version name a version, which is audited as it was released; --epsilon, --policy, --unit, "
            "--delta and --set describe another release. Give the ones or the others."
        )
    strangers = [name for name in settings if name != recommender]
    if strangers:
        raise SpecError(f"settings are given for {shown(strangers[0])}, and {shown(recommender)} is to be audited.")
    _require_finite(described.get("epsilon"))
    if "delta" in described and described.get("unit", "rating") == "rating":
        raise SpecError("--delta matters only with --unit user, whose noise is Gaussian. Leave it out.")
    try:
        request = Request.model_validate(
            {
                "recommender": recommender,
                "settings": settings.get(recommender, {}),
                "privacy": {**described, **policy_read(described)} if described or settings else None,
                **told,
            }
        )
    except ValidationError as error:
        option = error.errors(include_url=False)[0]["loc"][0]
        rule = RULES.get(str(option))
        raise SpecError(f"{rule}; found {quoted(told[str(option)])}." if rule else first_problem(error)) from None
    subject = described_subject(request)  # what cannot be is found out before servers are started
    if request.privacy is not None:
        of = subject.candidate
        require_conclusive(
            of.recommender, of.specification, subject.relation, subject.scale, request.runs, request.confidence
        )
    return request


def _require_finite(epsilon: str | None) -> None:
    if epsilon is not None and epsilon.strip().lower().lstrip("+") in ("inf", "infinity"):
        raise SpecError(
            "an audit tries to exceed a claim, and a claim of infinity cannot be exceeded. Give a finite --epsilon, as "
            "releases have."
        )


def described_subject(request: Request) -> Subject:
    """The recommender as it is described, at epsilon 1 where it is not.

    Raises:
      SpecError: there is no such recommender or setting, it promises nothing, or cannot keep such a promise.
    """
    recommender = make_recommender(request.recommender, request.settings)
    specification = specification_of(request.privacy or Privacy(), recommender.relation, 1.0)
    guarantee = recommender.guarantee(specification, public_catalogue=True)
    _require_promise(recommender, guarantee.epsilon)
    return Subject(
        Candidate(recommender, specification, guarantee), FIVE_STARS, request.relation or recommender.relation
    )


def _require_promise(recommender: Recommender, epsilon: float | None) -> None:
    if epsilon is None:
        raise SpecError(
            f"{recommender.name} promises nothing about privacy, so there is nothing to audit. `jali recommenders` "
            "says which ones do promise something."
        )


@flow(name="jali audit", flow_run_name="{request.recommender}", persist_result=False)
@named_refusals
def audit(request: Request) -> Done:
    """Find what to audit, try to exceed its claim, keep what came out."""
    remember_termination()
    stage("Opening MLflow")
    require_tracking_task(current_state())
    subject = chosen(request)
    trial = run_audit_task(whole(subject), request.runs, request.confidence)
    stage("Logging the audit to MLflow")
    return kept(trial)


def kept(trial: Trial) -> Done:
    """Log the audit and note it on its version; what came out is told even where that fails."""
    subject, faults = trial.subject, []
    run_id, noted = "", None
    try:
        run_id = log_audit_task(whole(trial), description(trial))
    except JaliError as fault:
        faults.append(str(fault))
    try:
        if subject.version is not None and subject.is_claimed:
            noted = note_audit_task(subject.version, whole(trial), run_id)
    except JaliError as fault:
        faults.append(str(fault))
    return Done(trial, run_id, noted, tuple(dict.fromkeys(faults)))


def chosen(request: Request) -> Subject:
    """A version as it was released, unless the request describes something else or nothing was released."""
    if request.privacy is None:
        version = find_version_task(request.recommender, request.source, request.version)
        if version is not None:
            return released_subject_task(version, request.recommender, request.relation)
        return described_subject(request)
    return replace(described_subject(request), passed_over=versions_known_task(request.recommender))
