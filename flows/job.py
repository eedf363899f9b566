"""A job: everything `jali run` is told. Paths, names and settings only, because Prefect stores and shows it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, Field, ValidationError, field_validator

from expectations.suites import Minimums
from models.candidate import Candidate
from models.errors import EnvironmentFault, SpecError, shown
from models.index import RECOMMENDERS, first_problem, make_recommender
from models.privacy.specification import Delta, Epsilon, Fraction, Policy, PrivacySpecification, Unit
from models.ratings import RatingScale
from tasks.rating_files import RatingsFile, catalogue_is_public
from tasks.text_files import expanded, require_file


def _scale(value: Any) -> Any:
    return RatingScale.parse(value) if isinstance(value, str) else value


def _ratings(value: Any) -> Any:
    return {"path": value} if isinstance(value, str) else value


def _policy(value: Any) -> Any:
    return {} if value == "default" else value


class Privacy(BaseModel, frozen=True, extra="forbid"):
    """The promise. With neither epsilon nor policy, epsilon is 1."""

    epsilon: Epsilon | None = None
    policy: Annotated[Policy | None, BeforeValidator(_policy)] = None
    unit: Unit = "rating"
    delta: Delta = 1e-6
    fraction: Fraction | None = None
    """Share of everybody's own epsilon that one release takes; by default the releases of a run share alike."""


class Job(BaseModel, frozen=True, extra="forbid"):
    source: str
    ratings: Annotated[RatingsFile | None, BeforeValidator(_ratings)] = None
    """None: the sample."""
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
    ratings = config.get("ratings")
    path = ratings.get("path") if isinstance(ratings, dict) else ratings
    # A missing file, a wrong setting or an impossible promise is found before a rating is read.
    for given, what in ((path, "ratings"), (config.get("items"), "items")):
        if isinstance(given, str):
            require_file(expanded(given), what)
    try:
        job = Job.model_validate({"source": Path(str(path)).name if path else "sample", **config})
    except ValidationError as error:
        raise SpecError(first_problem(error)) from None
    strangers = [name for name in job.settings if name not in job.recommenders]
    if strangers:
        raise SpecError(
            f"settings are given for {shown(strangers[0])}, which is not among the recommenders of this run."
        )
    candidates(job)
    return job


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
    if Path(path).name.removesuffix(".gz").endswith((".csv", ".dat", ".data", ".tsv")):
        name = shown(path)
        raise SpecError(f"{name} looks like ratings and not like a {what}. Give ratings with --ratings {name}.")
    file = expanded(path)
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
    epsilon: float | Literal[1] | None = 1 if told.epsilon is None and told.policy is None else told.epsilon
    try:
        return PrivacySpecification(
            epsilon=epsilon, policy=told.policy, unit=told.unit, delta=told.delta, fraction=fraction
        )
    except ValidationError as error:
        raise SpecError(f"privacy: {first_problem(error)}") from None
