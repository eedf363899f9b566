"""Name to recommender: the one list of what there is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from models.errors import SpecError, quoted, shown
from models.factorization.dp_pmf import DPPMF
from models.factorization.pdp_pmf import PDPPMF
from models.factorization.pmf import PMF
from models.histogram.pdp_histogram import PDPHistogram
from models.recommender import Recommender

RECOMMENDERS: dict[str, type[Recommender]] = {kind.name: kind for kind in (PMF, DPPMF, PDPPMF, PDPHistogram)}


def make_recommender(name: str, settings: Mapping[str, Any]) -> Recommender:
    """A recommender with these settings, defaults elsewhere.

    Raises:
      SpecError: there is no such recommender or setting, or a setting has a wrong value.
    """
    if name not in RECOMMENDERS:
        raise SpecError(f"there is no recommender {quoted(name)}. Choose from {', '.join(RECOMMENDERS)}.")
    try:
        return RECOMMENDERS[name](**settings)
    except ValidationError as error:
        raise SpecError(f"{name}: {first_problem(error)} See `jali recommenders` for its settings.") from None


def first_problem(error: ValidationError) -> str:
    """What pydantic complains about first, as one sentence; for settings only, whose values may be shown."""
    problem = error.errors(include_url=False)[0]
    where = shown(".".join(str(part) for part in problem["loc"] if not str(part).startswith("function-")))
    message = problem["msg"].removeprefix("Value error, ").removesuffix(".").replace("Input should", "this should")
    if problem["type"] == "extra_forbidden":
        return f"there is no setting {where}."
    if isinstance(problem["input"], str | int | float):
        message += f"; found {quoted(problem['input'])}"
    return f"{where}: {message}." if where else f"{message}."
