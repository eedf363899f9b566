"""Ratings: which formats there are, and reading them.

| format | recognised by | scale | catalogue without --items |
| --- | --- | --- | --- |
| ml-100k | the name u.data | 1:5:1 | 1..1682, published |
| ml-dat | a name ending in .dat (`::` between fields) | 1:5:1 | taken from the ratings |
| ml-csv | the header userId,movieId,rating,... | 0.5:5:0.5 | taken from the ratings |
| netflix | the name mv_N.txt or combined_data_N.txt, or a folder of such | 1:5:1 | 1..17770, published |
| yahoo-r3 | the name ydata-ymusic-rating-study-v1_0-train.txt or -test.txt | 1:5:1 | 1..1000, published |
| parquet, tsv | a name ending in .parquet or .tsv; columns by name | declared | taken from the ratings |
| csv | anything else: a header names the columns | declared | taken from the ratings |

All but Parquet may be compressed (.gz). A table or a query of a database has its columns by name too. The papers used
a part of Yahoo R3 (8,089 users, 270,121 ratings) that they do not define; here it is as published.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
from pydantic import Field, model_validator

from models.errors import SpecError
from models.ratings import RatingScale
from tasks.addresses import is_web
from tasks.columns import Choose, missing_columns, named_places, read_columns
from tasks.netflix import is_netflix_name, netflix_files, read_netflix
from tasks.paths import is_folder
from tasks.sources import LocalFile, TableSource, local_file
from tasks.table import RatingTable
from tasks.text_files import first_fields, parse, read_bytes

FormatName = Literal["auto", "ml-100k", "ml-dat", "ml-csv", "netflix", "yahoo-r3", "parquet", "tsv", "csv"]

ALIASES = {
    "user": ("user", "userid", "user_id"),
    "item": ("item", "itemid", "item_id", "movieid", "movie_id"),
    "rating": ("rating",),
}
MOVIELENS_HEADER = ["userId", "movieId", "rating"]
NAMED_COLUMNS = ("csv", "ml-csv", "tsv", "parquet")
YAHOO_R3_NAME = re.compile(r"ydata-ymusic-rating-study-v1_0-(train|test)\.txt")


@dataclass(frozen=True)
class RatingFormat:
    """What is published about the data that come in a format.

    Args:
      scale: known for a named format; to be declared otherwise.
      catalogue: the published list of items, where the format fixes it.
      delimiter, n_fields: of a format without a header: user, item, rating and perhaps more.
    """

    scale: RatingScale | None = None
    catalogue: tuple[str, ...] | None = None
    delimiter: str = ","
    n_fields: tuple[int, ...] = ()


def _numbered(n_items: int) -> tuple[str, ...]:
    return tuple(str(item) for item in range(1, n_items + 1))


WHOLE, HALF = RatingScale(low=1, high=5), RatingScale(low=0.5, high=5, step=0.5)
FORMATS: dict[str, RatingFormat] = {
    "ml-100k": RatingFormat(WHOLE, _numbered(1682), "\t", (3, 4)),
    "ml-dat": RatingFormat(WHOLE, None, "::", (3, 4)),
    "ml-csv": RatingFormat(HALF),
    "netflix": RatingFormat(WHOLE, _numbered(17770)),
    "yahoo-r3": RatingFormat(WHOLE, _numbered(1000), "\t", (3,)),
    "parquet": RatingFormat(),
    "tsv": RatingFormat(),
    "csv": RatingFormat(),
}


class RatingsSource(TableSource, frozen=True):
    """Where the ratings are and how to read them: safe to show."""

    format: FormatName = "auto"
    columns: dict[Literal["user", "item", "rating"], str] = Field(default_factory=dict)
    """Names of the table's columns; those left out are guessed from the usual ones."""

    @model_validator(mode="after")
    def _a_database_has_no_format(self) -> RatingsSource:
        if self.is_database and self.format != "auto":
            raise ValueError("a format is of a file, and a database was given")
        return self

    def require(self, what: str) -> None:
        if not self.is_database and not is_web(self.path) and is_folder(self.local_path) and self._may_be_netflix:
            netflix_files(self.local_path, what)
        else:
            super().require(what)

    @property
    def _may_be_netflix(self) -> bool:
        return self.format in ("auto", "netflix")

    @property
    def known_format(self) -> str | None:
        """The format that needs no look into a file; None where the header has to tell."""
        name = self.plain_name
        if self.is_database:
            return "csv"  # like a file with names for its columns and nothing known about them
        if self.format != "auto":
            return self.format
        if name == "u.data":
            return "ml-100k"
        if name.endswith(".dat"):
            return "ml-dat"
        if YAHOO_R3_NAME.fullmatch(name):
            return "yahoo-r3"
        if is_netflix_name(self.name) or (not is_web(self.path) and is_folder(self.local_path)):
            return "netflix"
        return self.kind_by_name


def read_ratings(source: RatingsSource) -> tuple[RatingFormat, RatingTable]:
    """Read the ratings; nothing about the values is checked here (that is validation's work).

    Raises:
      SpecError: there is no such table, or it is not in the format it should be in.
      EnvironmentFault: it cannot be read.
    """
    known = source.known_format
    if known in (None, *NAMED_COLUMNS):
        header, columns = read_columns(source, _chooser(source), "ratings", known or "csv")
        is_movielens = known is None and not source.columns and header[:3] == MOVIELENS_HEADER
        return FORMATS["ml-csv" if is_movielens else known or "csv"], _table(columns)
    format_ = FORMATS[str(known)]
    with local_file(source, "ratings") as file:
        if known == "netflix":
            return format_, _table(read_netflix(file))
        return format_, _without_header(read_bytes(file), format_, source.delimiter or format_.delimiter, file)


def fixes_catalogue(source: RatingsSource) -> bool:
    """Whether the source's format has a published list of items, answered without opening a file."""
    return source.known_format is not None and FORMATS[source.known_format].catalogue is not None


def _without_header(raw: bytes, format_: RatingFormat, delimiter: str, file: LocalFile) -> RatingTable:
    width = len(first_fields(raw, delimiter))
    if width not in format_.n_fields:
        fields = " ".join(("user", "item", "rating", "timestamp")[: max(format_.n_fields)])
        raise SpecError(
            f"{file} should have the fields {fields} separated by {delimiter!r}, and its first line has {width}. If it "
            "is another kind of file, say --format csv."
        )
    table = parse(raw, delimiter=delimiter, width=width, wanted=range(3), has_header=False, file=file)
    return RatingTable.of_columns(*table.columns)


def _table(columns: Mapping[str, pa.ChunkedArray]) -> RatingTable:
    return RatingTable.of_columns(*(columns[name] for name in ALIASES))


def catalogue_is_public(source: RatingsSource | None, items: str | None) -> bool:
    """Whether the catalogue will come from something published, answered without opening a file."""
    return items is not None or source is None or fixes_catalogue(source)


def _chooser(source: RatingsSource) -> Choose:
    declared = {str(name): value for name, value in source.columns.items()}

    def choose(header: list[str], where: str) -> Mapping[str, int]:
        places, missing = named_places(header, ALIASES, declared)
        if missing:
            raise missing_columns(where, len(header), missing, "--columns user=NAME,item=NAME,rating=NAME")
        return places

    return choose
