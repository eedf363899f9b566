"""`jali plan`: what a release would come to, before anything is spent. It reads no ratings of the source."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationError
from rich.table import Table

from flows.names import source_name
from models.errors import EnvironmentFault, SpecError, shown
from models.index import first_problem
from models.planning import Foretold, Plan
from models.privacy.specification import Epsilon
from models.ratings import RatingScale
from tasks.paths import home_path, require_writable
from tasks.plan_figure import plan_figure
from tasks.planning import Planned, plan_from_release, plan_from_sample
from tasks.state import current_state

MOST_EPSILONS = 20


def _listed(value: Any) -> Any:
    listed = value.split(",")
    if len(listed) > MOST_EPSILONS:
        raise ValueError(f"give at most {MOST_EPSILONS} of them, separated by commas")
    return listed


def _scale(value: Any) -> Any:
    return RatingScale.parse(value) if isinstance(value, str) else value


class Request(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """What `jali plan` is asked."""

    source: Annotated[str, AfterValidator(source_name)]
    epsilon: Annotated[tuple[Epsilon, ...], BeforeValidator(_listed)]
    users: Annotated[int, Field(ge=1, le=10**9)] | None = None
    items: Annotated[int, Field(ge=1, le=10**6)] | None = None
    scale: Annotated[RatingScale | None, BeforeValidator(_scale)] = None
    figure: str | None = None


def make_request(told: dict[str, Any]) -> Request:
    """What was asked, understood.

    Raises:
      SpecError: something is no number, out of range, or missing.
    """
    try:
        request = Request.model_validate(told)
    except ValidationError as error:
        raise SpecError(first_problem(error)) from None
    if request.items is not None and request.users is None:
        raise SpecError("--items without --users: to plan from the sample, declare how many users there are as well.")
    if request.scale is not None and request.items is None:
        raise SpecError("--scale is for planning from the sample, with --users and --items; a release knows its own.")
    if request.figure is not None:
        require_writable(request.figure, "figure", ".png")
        if Path(request.figure).suffix != ".png":
            raise SpecError(f"the figure {shown(request.figure)} must be a .png file. Name it so.")
    return request


def planned(request: Request) -> Planned:
    """From the sample where a catalogue was declared, else from the newest release."""
    epsilons = sorted(set(request.epsilon))
    if request.items is not None and request.users is not None:
        return plan_from_sample(epsilons, request.users, request.items, request.scale)
    return plan_from_release(request.source, epsilons, request.users)


def write_figure(request: Request, made: Planned) -> str:
    """Draw the plan; returns the path, which is .jali/plan-SOURCE.png where none was named.

    Raises:
      EnvironmentFault: it cannot be written.
    """
    path = request.figure or str(current_state().folder / f"plan-{request.source}.png")
    try:
        plan_figure(made.plan, request.source).savefig(home_path(path), dpi=120)
    except OSError as error:
        raise EnvironmentFault(f"the figure {shown(path)} cannot be written ({error.strerror}).") from None
    return path


def plan_table(made: Planned, left: list[float | None] | None) -> Table:
    """RMSE by epsilon, between what is left at too much noise and what there is without any.

    Args:
      left: what each epsilon leaves of the budget; see left_of_budget.
    """
    plan = made.plan
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    table.add_column("ε", no_wrap=True)
    for heading in ("RMSE", "±", "above\nno noise", "gain\nkept", *(["budget\nleft"] if left else [])):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, foretold, rest in _rows(plan, left):
        kept = plan.kept(foretold)
        table.add_row(
            name,
            f"{foretold.rmse:.3f}",
            f"{foretold.rmse_sd:.3f}",
            "-" if foretold is plan.without_noise else f"{foretold.loss:+.1%}",
            "-" if kept is None else f"{kept:.0%}",
            *([rest] if left else []),
        )
    return table


def _rows(plan: Plan, left: list[float | None] | None) -> list[tuple[str, Foretold, str]]:
    """From no privacy loss at all to no privacy: name, what is foretold, what is left of the budget."""
    rests = ["no room" if rest is None else f"{rest:.3g}" for rest in left or [None] * len(plan.epsilons)]
    epsilons = [
        (f"{epsilon:g}", foretold, rest)
        for epsilon, foretold, rest in zip(plan.epsilons, plan.foretold, rests, strict=True)
    ]
    return [("alone", plan.alone, "-"), *epsilons, ("no noise", plan.without_noise, "-")]


def closing_lines(made: Planned, path: str) -> list[str]:
    """What stands below the table: what it was made from, how to read it, how far to trust it."""
    plan = made.plan
    of = (
        f"{plan.n_ratings:,} ratings, supposed to be by {plan.n_users:,} users (--users), of {plan.n_items:,} items on "
        f"the scale {plan.scale}"
    )
    return [
        f"Foretold from {made.basis}: {of}.",
        *([made.warning] if made.warning else []),
        "RMSE is of ratings that were made up: mean and standard deviation of repetitions. The columns on the right "
        "compare, and are nearer to the truth than RMSE itself; docs/planning.md says how far off both are. `Alone` "
        "is a user's own ratings and nobody else's; the gain is what others' add to them.",
        f"No ratings were read, and nothing was spent or recorded. Figure: {shown(path)}",
    ]
