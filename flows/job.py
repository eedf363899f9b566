"""A job: everything `jali run` is told. Paths, names and settings only, because Prefect stores and shows it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, BeforeValidator, Field, ValidationError, field_validator

from expectations.suites import Minimums
from flows.names import source_name
from models.batch import BatchKind
from models.candidate import Candidate
from models.errors import EnvironmentFault, SpecError, shown
from models.index import RECOMMENDERS, first_problem, make_recommender
from models.privacy.accounting import as_written
from models.privacy.guarantee import Guarantee
from models.privacy.specification import (
    LEAST_FRACTION,
    Delta,
    Epsilon,
    Fraction,
    Policy,
    PrivacySpecification,
    Relation,
    Unit,
)
from models.private_metrics import PrivateMetrics
from models.ratings import RatingScale
from tasks.paths import home_path, require_file
from tasks.preferences_source import PreferencesSource
from tasks.rating_files import RatingsSource, catalogue_is_public


def _scale(value: Any) -> Any:
    return RatingScale.parse(value) if isinstance(value, str) else value


def _source(value: Any) -> Any:
    return {"path": value} if isinstance(value, str) else value


def _policy(value: Any) -> Any:
    return {} if value == "default" else value


def _metrics(value: Any) -> Any:
    return value if value is None or isinstance(value, dict | PrivateMetrics) else {"epsilon": value}


class Privacy(BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True):
    """The promise. With neither epsilon nor policy nor preferences, epsilon is 1."""

    epsilon: Epsilon | None = None
    """What each release costs."""
    policy: Annotated[Policy | None, BeforeValidator(_policy)] = None
    """Own epsilon for every rating, drawn."""
    preferences: Annotated[PreferencesSource | None, BeforeValidator(_source)] = None
    """Own epsilon for every rating, from a private table of what each person asked for."""
    unit: Unit = "rating"
    """What is protected."""
    delta: Delta = 1e-6
    """Matters to Gaussian noise alone."""
    fraction: Fraction | None = None
    """Share of everybody's own epsilon that one release takes; by default the releases of a run share alike."""
    metrics: Annotated[PrivateMetrics | None, BeforeValidator(_metrics)] = None
    """What is spent on an RMSE that each release states."""


def _like_its_ratings(told: dict[str, Any]) -> str:
    return told["ratings"].name if told["ratings"] else "sample"


def _batches(value: Any) -> Any:
    return {"true": {}, "false": None}.get(str(value).lower(), value)


class Batches(BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True):
    """Release what is new alone, added to what was released before."""

    corrections: bool = False
    """Whether a rating that changed since it was released is corrected; that is paid for, changed or not."""

    @property
    def kind(self) -> BatchKind:
        return "corrected" if self.corrections else "fresh"


class Job(BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True):
    """What `jali run` is told; a form in Prefect's UI, with what is written below the fields."""

    ratings: Annotated[RatingsSource | None, BeforeValidator(_source)] = None
    """None: the sample."""
    source: str = Field(default_factory=_like_its_ratings, validate_default=True)
    """Name of the data."""
    items: str | None = None
    """Path of the public catalogue; None: it is taken from the ratings, or known."""
    scale: Annotated[RatingScale | None, BeforeValidator(_scale)] = None
    """None: known for the named formats."""
    recommenders: tuple[str, ...] = Field(default=tuple(RECOMMENDERS), min_length=1)
    """By default all that can keep the promise."""
    settings: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """By recommender; `jali recommenders` explains them."""
    folds: int = Field(default=10, ge=2, le=1000)
    """Of the cross-validation."""
    privacy: Privacy = Privacy()
    batch: Annotated[Batches | None, BeforeValidator(_batches)] = None
    """None: every release is fitted to all ratings."""
    validation: Minimums = Minimums()
    publish: bool = True
    """False: evaluate only."""
    require_budget: bool = False
    """Whether to release nothing of a source without a budget."""
    accept_unproven: str | None = Field(default=None, min_length=1, max_length=500)
    """Why a recommender that is not proven may be released although the source has a budget; recorded."""
    named: bool = True
    """Whether somebody named the recommenders. What nobody named is evaluated, and not released where a budget
    would refuse it."""
    report: str | None = None
    """Path of a file for the results as JSON."""

    @property
    def batch_kind(self) -> BatchKind | None:
        return self.batch.kind if self.batch else None

    @property
    def data(self) -> str:
        """What was told of the ratings and preferences, as it may be stored; two jobs alike in it read the same."""
        return self.model_dump_json(include={"ratings": True, "items": True, "scale": True, "privacy": {"preferences"}})

    @property
    def minimums(self) -> Minimums:
        """What validation demands; every fold needs a rating."""
        return self.validation.model_copy(update={"min_ratings": max(self.folds, self.validation.min_ratings)})

    @field_validator("source")
    @classmethod
    def _a_name_of_its_own(cls, value: str) -> str:
        return source_name(value)

    @field_validator("recommenders", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return [name.strip() for name in value.split(",")] if isinstance(value, str) else value

    @field_validator("recommenders")
    @classmethod
    def _once_each(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) < len(value):
            raise ValueError("name every recommender once")
        return value


def make_job(config: dict[str, Any]) -> Job:
    """A job from its settings.

    Raises:
      SpecError: a setting is unknown, has a wrong value, or contradicts another.
    """
    misplaced = [name for name in config if name in Privacy.model_fields]
    if misplaced:
        raise SpecError(
            f"{misplaced[0]} is a setting of privacy: write `privacy: {{{misplaced[0]}: ...}}`, or two lines as in "
            "docs/jali.example.yaml."
        )
    try:
        job = Job.model_validate(config)
    except ValidationError as error:
        raise SpecError(first_problem(error)) from None
    # A missing file, a wrong setting or an impossible promise is found before a rating is read.
    if job.ratings:
        job.ratings.require("ratings")
    if job.privacy.preferences:
        job.privacy.preferences.require("preferences")
    if job.items:
        require_file(home_path(job.items), "items")
    strangers = [name for name in job.settings if name not in job.recommenders]
    if strangers:
        raise SpecError(
            f"settings are given for {shown(strangers[0])}, which is not among the recommenders of this run."
        )
    if "recommenders" not in config:
        eligible = tuple(name for name in job.recommenders if RECOMMENDERS[name].batches or not job.batch)
        able = tuple(name for name in eligible if _can_keep(job, name))
        job = job.model_copy(update={"recommenders": able or eligible, "named": False})
    if job.batch and len(job.recommenders) > 1:
        raise SpecError("a batch is released of one recommender: name one with --recommenders.")
    if job.batch and job.privacy.metrics:
        raise SpecError(
            "private metrics would cost every rating anew with every batch, and in batches each pays once. Leave "
            "--private-metrics or --batch out."
        )
    candidates(job)
    return job


def promises_something(guarantee: Guarantee) -> bool:
    return guarantee.verdict != "none"


def _can_keep(job: Job, name: str) -> bool:
    recommender = make_recommender(name, job.settings.get(name, {}))
    specification = specification_of(job.privacy, recommender.relation, 1.0)
    try:
        recommender.guarantee(specification, public_catalogue=True, batch=job.batch_kind)
    except SpecError:
        return False
    return True


class PlainLoader(yaml.SafeLoader):
    """YAML without base sixty and base eight: PyYAML reads `scale: 1:5:1` as 3901 seconds, `folds: 010` as 8.

    And without NULs and halves of characters, which no path and no database takes.
    """

    def construct_scalar(self, node: Any) -> str:
        text = str(super().construct_scalar(node))
        text.encode()
        if "\0" in text:
            raise ValueError
        return text


PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":int", ":float"))]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
PlainLoader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"[-+]?(0|[1-9][0-9]*)$"), list("-+0123456789"))
PlainLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|[-+]?\.(inf|Inf|INF)$|\.(nan|NaN|NAN)$"),
    list("-+0123456789."),
)


def plain_yaml(text: str) -> Any:
    """The value that `text` writes, by PlainLoader. Raises yaml.YAMLError."""
    try:
        return yaml.load(text, PlainLoader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError:
        raise
    except Exception as error:  # `!!int x`, 2001-99-99, ten thousand brackets: whatever PyYAML meets is no YAML to us
        raise yaml.YAMLError(type(error).__name__) from None


def read_config(path: str, what: str = "configuration") -> dict[str, Any]:
    """The settings in a YAML file.

    Raises:
      SpecError: there is no such file, or it holds no settings.
      EnvironmentFault: it cannot be read.
    """
    if Path(path).name.removesuffix(".gz").endswith((".csv", ".dat", ".data", ".tsv", ".parquet")):
        name = shown(path)
        raise SpecError(f"{name} looks like ratings and not like a {what}. Give ratings with --ratings {name}.")
    file = home_path(path)
    require_file(file, what)
    try:
        config = plain_yaml(file.read_text("utf-8-sig"))
    except OSError as error:
        raise EnvironmentFault(f"the {what} file {shown(path)} cannot be read ({error.strerror}).") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise SpecError(
            f"the {what} file {shown(path)} is not YAML that Jali can read. docs/jali.example.yaml shows the form."
        ) from None
    if not isinstance(config, dict):
        raise SpecError(f"the {what} file {shown(path)} must hold `setting: value` lines; see docs/jali.example.yaml.")
    return config


def candidates(job: Job, releases: Callable[[Guarantee], bool] = promises_something) -> list[Candidate]:
    """The recommenders with what each promises and costs; no rating is read.

    Args:
      releases: whether what is promised so would be released. All that is released shares everybody's own epsilon.

    Raises:
      SpecError: a recommender has no such setting, or cannot keep such a promise.
    """
    public = catalogue_is_public(job.ratings, job.items)
    made = [make_recommender(name, job.settings.get(name, {})) for name in job.recommenders]
    whole = {relation: specification_of(job.privacy, relation, 1.0) for relation in {kind.relation for kind in made}}
    n_releases = sum(releases(kind.guarantee(whole[kind.relation], public_catalogue=public)) for kind in made)
    metrics = job.privacy.metrics
    if metrics and not (job.publish and n_releases):
        raise SpecError(
            "private metrics measure releases, and this run releases nothing. Leave --private-metrics out (cross-"
            "validation costs nothing, and stays inside), or publish a recommender that promises something."
        )
    fraction = _fraction(job.privacy, list(whole.values()), max(n_releases, 1))
    chosen = []
    for recommender in made:
        specification = specification_of(job.privacy, recommender.relation, fraction)
        guarantee = recommender.guarantee(specification, public_catalogue=public, batch=job.batch_kind)
        chosen.append(Candidate(recommender, specification, guarantee, metrics if releases(guarantee) else None))
    return chosen


def _fraction(told: Privacy, specifications: list[PrivacySpecification], n_releases: int) -> float:
    """Share of everybody's own epsilon that one release takes: as told, or alike, less what its metrics take.

    Raises:
      SpecError: a release and its metrics would cost somebody more than that person's own epsilon, or their part.
    """
    if not any(specification.personalised for specification in specifications):
        return told.fraction or 1.0
    if told.metrics is None:
        return told.fraction or 1 / n_releases
    taken = max(told.metrics.share_of_own(specification) or 0.0 for specification in specifications)
    part, least = (1.0, told.fraction) if told.fraction else (1 / n_releases, LEAST_FRACTION)
    if as_written(least) + as_written(taken) > as_written(part):
        raise SpecError(
            f"private metrics take {taken:.3g} of the own epsilon of whoever has the least, and a release {least:.3g} "
            f"or more; together they may take {part:.3g}. Lower --private-metrics, the number of recommenders or "
            "--fraction."
        )
    return told.fraction or max(part - taken - 2**-50, LEAST_FRACTION)  # less by more than rounding may have added


def specification_of(told: Privacy, relation: Relation, fraction: float) -> PrivacySpecification:
    """What a release that takes `fraction` of everybody's own epsilon may cost.

    Raises:
      SpecError: what is told contradicts itself.
    """
    asked = told.preferences.declared if told.preferences else None
    try:
        return PrivacySpecification(
            epsilon=1 if told.epsilon is None and told.policy is None and asked is None else told.epsilon,
            policy=told.policy,
            preferences=asked,
            unit=told.unit,
            relation=relation,
            delta=told.delta,
            fraction=fraction,
        )
    except ValidationError as error:
        raise SpecError(f"privacy: {first_problem(error)}") from None
