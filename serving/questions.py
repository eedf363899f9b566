"""Requests and answers of the web service, as its OpenAPI description shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict
from typing_extensions import TypedDict

from models.release import DEFAULT_N, MOST_ITEMS, MOST_N, MOST_RATINGS

STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

Item = str | int


class OwnRating(TypedDict):
    """One of the asker's own ratings."""

    __pydantic_config__ = STRICT  # type: ignore[misc]
    item: Item
    rating: float


OwnRatings = Annotated[list[OwnRating], Field(max_length=MOST_RATINGS, default_factory=list)]

_RATED: JsonDict = {"ratings": [{"item": "50", "rating": 5}, {"item": "181", "rating": 4}]}
EXAMPLE_N: JsonDict = {"examples": [{**_RATED, "n": 10}]}
EXAMPLE_ITEMS: JsonDict = {"examples": [{**_RATED, "items": ["172", "1"]}]}


class ToRecommend(BaseModel, strict=True, extra="forbid", json_schema_extra=EXAMPLE_N):
    """Own ratings, and how many items to recommend."""

    ratings: OwnRatings
    n: Annotated[int, Field(ge=0, le=MOST_N)] = DEFAULT_N


class ToPredict(BaseModel, strict=True, extra="forbid", json_schema_extra=EXAMPLE_ITEMS):
    """Own ratings, and the items to predict."""

    ratings: OwnRatings
    items: Annotated[list[Item], Field(max_length=MOST_ITEMS)]


class Predicted(BaseModel):
    item: str
    title: str
    rating: float


class Model(BaseModel):
    name: str
    version: str


class Answer(BaseModel, use_attribute_docstrings=True):
    items: list[Predicted]
    """Best first, or as asked."""
    ignored: int
    """How many own ratings were of items outside the catalogue."""
    unknown: list[str]
    """Which of the items asked for are outside it."""
    note: str | None
    model: Model


class Problem(BaseModel):
    status: int
    message: str


class Refusal(BaseModel):
    """The body of every answer that is not 200."""

    error: Problem


SENTENCES = {
    "rating": "a rating is a finite number",
    "item": "an item is named by a text or a whole number",
    "items": f"items is a list of the items to predict, at most {MOST_ITEMS:,} of them",
    "n": f"n says how many items to recommend: a whole number from 0 to {MOST_N:,}",
    "ratings": f'ratings is a list of {{"item": ..., "rating": a number}}, at most {MOST_RATINGS:,} of them',
}


def sentence_about(errors: Sequence[Any]) -> tuple[int, str]:
    """Status and sentence for what pydantic found wrong. Of the request it shows at most a place in a list."""
    first = errors[0]
    place = [part for part in first["loc"] if isinstance(part, int) or part in SENTENCES]
    if first["type"] == "json_invalid" or first["loc"] == ("body",):
        return 400, 'the body is a JSON object, such as {"ratings": [{"item": "50", "rating": 5}]}.'
    if first["type"] == "extra_forbidden":
        outside = [part for part in place if isinstance(part, int) or part != first["loc"][-1]]
        return 422, (
            f"there is a field{_within(outside)} that is none of this request's: a request has ratings, and n or "
            "items; a rating has item and rating. Leave it out."
        )
    field = next((part for part in reversed(place) if isinstance(part, str)), "ratings")
    field = "item" if field == "items" and place[-1] != "items" else field
    if first["type"] == "missing":
        return 422, f"{field} is missing{_within(place[:-1])}: {SENTENCES[field]}."
    return 422, f"{SENTENCES[field]}; something else is{_within(place) or ' there'}."


def _within(place: list[str | int]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return f" at {text.removeprefix('.')}" if text else ""
