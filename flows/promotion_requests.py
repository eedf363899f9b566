"""What `jali promote` and `jali rollback` are asked, understood before anything heavy is imported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, Field, StringConstraints, ValidationError

from flows.names import of_a_source, source_name
from models.errors import SpecError, quoted
from models.index import RECOMMENDERS, first_problem
from tasks.decisions import GATES, Gate


def _known(recommender: str) -> str:
    if recommender not in RECOMMENDERS:
        raise ValueError(f"there is no recommender {quoted(recommender)}; there are {', '.join(RECOMMENDERS)}")
    return recommender


Source = Annotated[str, AfterValidator(source_name)]
Number = Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]{0,8}$")]
Reason = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=500)]


class Promotion(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """What `jali promote` is asked; Prefect stores and shows it."""

    recommender: Annotated[str, AfterValidator(_known)]
    version: Number | None = None
    """None: the newest."""
    source: Source | None = None
    """None: the only one that has a version."""
    dry_run: bool = False
    """Whether to look at the gates alone."""
    waive: dict[Gate, Reason] = Field(default_factory=dict)
    """Why a gate that refuses does not stop the version; recorded."""
    why: Reason | None = None
    """Recorded."""
    max_rmse: Annotated[float, Field(gt=0)] | None = None
    """The most that the paid RMSE may be, its interval's upper end; None: not worse than the champion's."""


class Rollback(BaseModel, frozen=True, extra="forbid"):
    """What `jali rollback` is asked; Prefect stores and shows it."""

    source: Source | None = None
    """None: the only one that serves anything."""
    why: Reason | None = None
    """Recorded."""
    to: Number | None = None
    """A version of SOURCE.serving; None: what was champion before."""


RULES = {
    "recommender": f"RECOMMENDER is one of {', '.join(RECOMMENDERS)}",
    "version": "VERSION is a whole number, 1 or more, as the registry counts them",
    "max_rmse": "--max-rmse is a number above 0, in rating units",
    "why": "--because says why, in 1 to 500 characters",
    "to": "--to is a version of SOURCE.serving: a whole number, 1 or more",
}
"""Of what is one option each, in the command line's words."""


def make_promotion(
    recommender: str, waivers: list[str], unproven: str | None, other: dict[str, str | None]
) -> Promotion:
    """What was asked, understood.

    Args:
      waivers: `GATE=REASON`.
      unproven: the same for the verdict, without its name.
      other: version, source, why, max_rmse and dry_run.

    Raises:
      SpecError: something is unknown, out of range or contradicts itself.
    """
    given = {name: value for name, value in other.items() if value is not None}
    recommender, given = of_a_source(recommender, given)
    waive = _waived(waivers if unproven is None else [*waivers, f"verdict={unproven}"])
    return _made(Promotion, {"recommender": recommender, "waive": waive, **given})


def make_rollback(told: dict[str, str | None]) -> Rollback:
    """The same of source, why and to."""
    return _made(Rollback, {name: value for name, value in told.items() if value is not None})


def _waived(texts: list[str]) -> dict[str, str]:
    waived: dict[str, str] = {}
    for text in texts:
        gate, _, reason = text.partition("=")
        if gate not in GATES:
            raise SpecError(f"there is no gate {quoted(gate)} to waive. The gates are {', '.join(GATES)}.")
        if not 0 < len(reason.strip()) <= 500:
            raise SpecError(f"the gate {gate} is waived with a reason, --waive {gate}=REASON, of 1 to 500 characters.")
        if gate in waived:
            raise SpecError(f"the gate {gate} is waived twice. Give one reason.")
        waived[gate] = reason
    return waived


Asked = TypeVar("Asked", bound=BaseModel)


def _made(kind: type[Asked], told: Mapping[str, object]) -> Asked:
    try:
        return kind.model_validate(told)
    except ValidationError as error:
        option = str(error.errors(include_url=False)[0]["loc"][0])
        rule = RULES.get(option)
        raise SpecError(f"{rule}; found {quoted(told[option])}." if rule else first_problem(error)) from None
