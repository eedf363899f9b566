"""Rating files: which formats there are, and reading them.

| format | recognised by | scale | catalogue without --items |
| --- | --- | --- | --- |
| ml-100k | the name u.data | 1:5:1 | 1..1682, published |
| ml-dat | a name ending in .dat (`::` between fields) | 1:5:1 | taken from the ratings |
| ml-csv | the header userId,movieId,rating,... | 0.5:5:0.5 | taken from the ratings |
| csv | anything else: a header names the columns | declared | taken from the ratings |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, field_validator

from models.errors import SpecError
from models.ratings import RatingScale
from tasks.table import RatingTable
from tasks.text_files import expanded, first_fields, parse, read_bytes

FormatName = Literal["auto", "ml-100k", "ml-dat", "ml-csv", "csv"]

ALIASES = {
    "user": ("user", "userid", "user_id"),
    "item": ("item", "itemid", "item_id", "movieid", "movie_id"),
    "rating": ("rating",),
}


@dataclass(frozen=True)
class RatingFormat:
    delimiter: str
    names: tuple[str, ...] | None
    """Columns in order where the file has no header."""
    scale: RatingScale | None
    """Known for a named format; to be declared otherwise."""
    catalogue: tuple[str, ...] | None = None
    """The published list of items, where the format fixes it."""


FOUR = ("user", "item", "rating", "timestamp")
WHOLE, HALF = RatingScale(low=1, high=5), RatingScale(low=0.5, high=5, step=0.5)
FORMATS = {
    "ml-100k": RatingFormat("\t", FOUR, WHOLE, tuple(str(item) for item in range(1, 1683))),
    "ml-dat": RatingFormat("::", FOUR, WHOLE),
    "ml-csv": RatingFormat(",", None, HALF),
    "csv": RatingFormat(",", None, None),
}


class RatingsFile(BaseModel, frozen=True, extra="forbid"):
    """Where the ratings are and how to read them. Paths and settings only: safe to show."""

    path: str
    format: FormatName = "auto"
    columns: dict[Literal["user", "item", "rating"], str] = Field(default_factory=dict)
    """Names of the header's columns; those left out are guessed from the usual ones."""
    delimiter: str | None = Field(default=None, min_length=1, max_length=1)

    @field_validator("delimiter")
    @classmethod
    def _one_that_can_separate(cls, value: str | None) -> str | None:
        if value is not None and (not value.isascii() or value in '"\r\n'):
            raise ValueError("a delimiter is one ASCII character, and no quotation mark and no line end")
        return value


def read_ratings(file: RatingsFile) -> tuple[RatingFormat, RatingTable]:
    """Read the file; nothing about the values is checked here (that is validation's work).

    Raises:
      SpecError: there is no such file, or it is not in the format it should be in.
      EnvironmentFault: it cannot be read.
    """
    path = expanded(file.path)
    raw = read_bytes(path, "ratings")
    format_ = detect_format(file, raw)
    first = first_fields(raw, format_.delimiter)
    if format_.names is None:
        places = _places(first, file)
    elif len(first) in (3, 4):
        places = {name: at for at, name in enumerate(format_.names)}
    else:
        raise SpecError(
            f"{path} should have the fields {' '.join(format_.names)} separated by {format_.delimiter!r}, and its "
            f"first line has {len(first)}. If it is another kind of file, say --format csv."
        )
    # Columns are parsed under their number: a header may name two alike, or hold anything at all.
    table = parse(
        raw,
        delimiter=format_.delimiter,
        names=[str(at) for at in range(len(first))],
        has_header=format_.names is None,
        path=path,
        what="ratings",
    )
    if len(table) == 0:
        raise SpecError(f"the ratings file {path} has a header and no ratings below it.")
    return format_, RatingTable.of_columns(*(table.column(places[name]) for name in ("user", "item", "rating")))


def fixes_catalogue(file: RatingsFile) -> bool:
    """Whether the file's format has a published list of items, answered from its name alone."""
    return file.format == "ml-100k" or (file.format == "auto" and _plain_name(file) == "u.data")


def catalogue_is_public(file: RatingsFile | None, items: str | None) -> bool:
    """Whether the catalogue will come from something published, answered without opening a file."""
    return items is not None or file is None or fixes_catalogue(file)


def _plain_name(file: RatingsFile) -> str:
    return Path(file.path).name.removesuffix(".gz")


def detect_format(file: RatingsFile, raw: bytes) -> RatingFormat:
    """By name for files without a header, by header for the rest."""
    if file.format != "auto":
        chosen = FORMATS[file.format]
    elif _plain_name(file) == "u.data":
        chosen = FORMATS["ml-100k"]
    elif _plain_name(file).endswith(".dat"):
        chosen = FORMATS["ml-dat"]
    elif not file.columns and first_fields(raw, ",")[:3] == ["userId", "movieId", "rating"]:
        chosen = FORMATS["ml-csv"]
    else:
        chosen = FORMATS["csv"]
    if file.delimiter is None:
        return chosen
    return replace(chosen, delimiter=file.delimiter)


def _places(header: list[str], file: RatingsFile) -> Mapping[str, int]:
    """Which column holds what. A complaint never quotes the header: without one it is a rating."""
    lowered = [name.lower() for name in header]
    columns: Mapping[str, str] = {str(name): value for name, value in file.columns.items()}
    places, missing = {}, []
    for column, aliases in ALIASES.items():
        declared = columns.get(column)
        found = [header.index(declared)] if declared in header else []
        if declared is None:
            found = [lowered.index(alias) for alias in aliases if alias in lowered]
        if found:
            places[column] = found[0]
        else:
            missing.append(declared or column)
    if missing:
        hint = (
            " Only one column was found: is the delimiter another? Declare it with --delimiter."
            if len(header) == 1
            else ""
        )
        raise SpecError(
            f"the first line of {file.path} must name the columns, and no column is named {' or '.join(missing)}.{hint}"
            " Add a header line, or say what the columns are called with --columns user=NAME,item=NAME,rating=NAME."
        )
    return places
