"""A job: everything `jali run` is told. Paths, names and settings only, because Prefect stores and shows it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, BeforeValidator, Field, ValidationError, field_validator

from models.candidate import Candidate
from models.errors import SpecError
from models.index import RECOMMENDERS, first_problem, make_recommender
from models.privacy.specification import Delta, Epsilon, Fraction, Policy, PrivacySpecification, Unit
from models.ratings import RatingScale
from tasks.loading import catalogue_is_public
from tasks.preferences import PreferencesSource
from tasks.rating_files import RatingsSource
from tasks.sources import require_file
from tasks.validation import Minimums


def _scale(value: Any) -> Any:
    return RatingScale.parse(value) if isinstance(value, str) else value


def _source(value: Any) -> Any:
    return {"path": value} if isinstance(value, str) else value


def _policy(value: Any) -> Any:
    return {} if value == "default" else value


class Privacy(BaseModel, frozen=True, extra="forbid"):
    """The promise. With neither epsilon nor policy nor preferences, epsilon is 1."""

    epsilon: Epsilon | None = None
    policy: Annotated[Policy | None, BeforeValidator(_policy)] = None
    preferences: Annotated[PreferencesSource | None, BeforeValidator(_source)] = None
    unit: Unit = "rating"
    delta: Delta = 1e-6
    fraction: Fraction | None = None
    """Share of everybody's own epsilon that one release takes; by default the releases of a run share alike."""


def _like_its_ratings(told: dict[str, Any]) -> str:
    return told["ratings"].name if told["ratings"] else "sample"


class Job(BaseModel, frozen=True, extra="forbid"):
    ratings: Annotated[RatingsSource | None, BeforeValidator(_source)] = None
    """None: the sample."""
    source: str = Field(default_factory=_like_its_ratings, validate_default=True)
    """Name of the data."""
    items: str | None = None
    scale: Annotated[RatingScale | None, BeforeValidator(_scale)] = None
    recommenders: tuple[str, ...] = Field(default=tuple(RECOMMENDERS), min_length=1)
    settings: dict[str, dict[str, Any]] = Field(default_factory=dict)
    folds: int = Field(default=10, ge=2, le=1000)
    privacy: Privacy = Privacy()
    validation: Minimums = Minimums()
    publish: bool = True
    report: str | None = None

    @property
    def minimums(self) -> Minimums:
        """What validation demands; every fold needs a rating."""
        return self.validation.model_copy(update={"min_ratings": max(self.folds, self.validation.min_ratings)})

    @field_validator("source")
    @classmethod
    def _a_name_of_its_own(cls, value: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9 ._+-]{0,98}[A-Za-z0-9_+-])?", value):
            raise ValueError("a source is called by letters, digits, blanks and . _ + -; give it a name with --source")
        if value.endswith((".releases", ".serving")):
            raise ValueError("names ending in .releases and .serving are for what leaves; give another with --source")
        return value

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
        require_file(Path(job.items).expanduser(), "items")
    strangers = [name for name in job.settings if name not in job.recommenders]
    if strangers:
        raise SpecError(f"settings are given for {strangers[0]}, which is not among the recommenders of this run.")
    candidates(job)
    return job


class PlainLoader(yaml.SafeLoader):
    """YAML without base sixty: PyYAML reads `scale: 1:5:1` as 3901 seconds."""


PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":int", ":float"))]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
PlainLoader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"[-+]?[0-9]+$"), list("-+0123456789"))
PlainLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|[-+]?\.(inf|Inf|INF)$|\.(nan|NaN|NAN)$"),
    list("-+0123456789."),
)


def plain_yaml(text: str) -> Any:
    """The value that `text` writes, by PlainLoader. Raises yaml.YAMLError."""
    return yaml.load(text, PlainLoader)  # noqa: S506 - a SafeLoader


def read_config(path: str, what: str = "configuration") -> dict[str, Any]:
    """The settings in a YAML file.

    Raises:
      SpecError: there is no such file, or it holds no settings.
    """
    if Path(path).name.removesuffix(".gz").endswith((".csv", ".dat", ".data", ".tsv", ".parquet")):
        raise SpecError(f"{path} looks like ratings and not like a {what}. Give ratings with --ratings {path}.")
    try:
        config = plain_yaml(Path(path).read_text())
    except OSError as error:
        raise SpecError(f"the {what} {path} cannot be read ({error.strerror}).") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise SpecError(f"the {what} {path} is not YAML. docs/jali.example.yaml shows the form.") from None
    if not isinstance(config, dict):
        raise SpecError(f"the {what} {path} must hold `setting: value` lines; see docs/jali.example.yaml.")
    return config


def candidates(job: Job) -> list[Candidate]:
    """The recommenders with what each promises and costs; no rating is read.

    Raises:
      SpecError: a recommender has no such setting, or cannot keep such a promise.
    """
    public = catalogue_is_public(job.ratings, job.items)
    made = [make_recommender(name, job.settings.get(name, {})) for name in job.recommenders]
    specification = _specification(job, 1.0)
    n_releases = sum(recommender.promise(specification).epsilon is not None for recommender in made)
    if specification.personalised:
        specification = _specification(job, job.privacy.fraction or 1 / max(n_releases, 1))
    elif job.privacy.fraction is not None:
        specification = _specification(job, job.privacy.fraction)
    return [
        Candidate(recommender, specification, recommender.guarantee(specification, public_catalogue=public))
        for recommender in made
    ]


def _specification(job: Job, fraction: float) -> PrivacySpecification:
    told = job.privacy
    asked = told.preferences.declared if told.preferences else None
    try:
        return PrivacySpecification(
            epsilon=1 if told.epsilon is None and told.policy is None and asked is None else told.epsilon,
            policy=told.policy,
            preferences=asked,
            unit=told.unit,
            delta=told.delta,
            fraction=fraction,
        )
    except ValidationError as error:
        raise SpecError(f"privacy: {first_problem(error)}") from None
