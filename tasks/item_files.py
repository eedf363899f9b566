"""Item files: the public catalogue, with titles and features.

`u.item` (ML-100K), `movies.dat` (ML-1M, ML-10M), or a CSV, TSV or Parquet file whose columns are `item` (or
movieId) and, where there are, `title` and `genres` (or tags): several tags are separated by `|`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from models.errors import SpecError
from models.ratings import Catalogue
from tasks.columns import named_places
from tasks.parquet_files import parquet_names, read_parquet
from tasks.rating_files import ALIASES
from tasks.sources import LocalFile
from tasks.text_files import first_fields, parse, read_bytes

ML_100K_GENRES = [
    "unknown",
    "Action",
    "Adventure",
    "Animation",
    "Children's",
    "Comedy",
    "Crime",
    "Documentary",
    "Drama",
    "Fantasy",
    "Film-Noir",
    "Horror",
    "Musical",
    "Mystery",
    "Romance",
    "Sci-Fi",
    "Thriller",
    "War",
    "Western",
]
MOST_FEATURES = 2_000
"""Every item has a number for every feature. The Tag Genome, the richest of MovieLens' files, has 1,128 tags."""

NO_GENRES = "(no genres listed)"
TAG_COLUMNS = ("genres", "tags", "features")


def read_items(path: Path) -> Catalogue:
    """The catalogue in the file's order.

    Raises:
      SpecError: the file is missing or damaged, or an item occurs twice.
      EnvironmentFault: it cannot be read.
    """
    file = LocalFile.at(path, "items")
    name = path.name.removesuffix(".gz")
    if name.lower().endswith(".parquet"):
        header = parquet_names(file)
        return _of_columns(read_parquet(file, _places(header, file)), file)
    raw = read_bytes(file)
    if name == "u.item":
        rows = [line.split("|") for line in _lines(raw)]
        _require_width(rows, 5 + len(ML_100K_GENRES), path)
        tags = [
            "|".join(genre for genre, flag in zip(ML_100K_GENRES, row[5:], strict=True) if flag.strip() == "1")
            for row in rows
        ]
        return catalogue_of([row[0] for row in rows], [row[1] for row in rows], tags, path.name)
    if name.endswith(".dat"):
        rows = [line.split("::") for line in _lines(raw)]
        _require_width(rows, 3, path)
        return catalogue_of([row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows], path.name)
    delimiter = "\t" if name.lower().endswith(".tsv") else ","
    header = first_fields(raw, delimiter)
    places = _places(header, file)
    table = parse(
        raw,
        delimiter=delimiter,
        width=len(header),
        wanted=set(places.values()),
        has_header=True,
        file=file,
        nulls=("",),
    )
    return _of_columns({name: table.column(str(at)) for name, at in places.items()}, file)


def catalogue_of(items: list[str], titles: list[str], tags: list[str], where: str) -> Catalogue:
    """A public catalogue; `tags` holds one `|`-separated text per item."""
    if len(set(items)) < len(items) or "" in items:
        raise SpecError(f"{where} must name every item once; an id is missing or occurs again.")
    tags_of = [[tag for tag in text.split("|") if tag and tag != NO_GENRES] for text in tags]
    names = sorted({tag for tags in tags_of for tag in tags})
    if len(names) > MOST_FEATURES:
        raise SpecError(
            f"{where} has more than {MOST_FEATURES:,} different genres or tags. Leave out those that few items have, "
            "and check that what separates them is |."
        )
    column = {name: at for at, name in enumerate(names)}
    features = np.zeros((len(items), len(names)), np.float32)
    for row, its_tags in enumerate(tags_of):
        features[row, [column[tag] for tag in its_tags]] = 1
    return Catalogue(tuple(items), tuple(titles), features, tuple(names))


def _places(header: list[str], file: LocalFile) -> dict[str, int]:
    places, _ = named_places(header, {"item": ALIASES["item"], "title": ("title",), "tags": TAG_COLUMNS}, {})
    if "item" not in places:
        raise SpecError(
            f"{file} must name its columns, with item (or movieId) among them, and title and genres where there are "
            "any. Add a header line."
        )
    return places


def _of_columns(columns: Mapping[str, pa.ChunkedArray], file: LocalFile) -> Catalogue:
    texts = {name: [text or "" for text in column.to_pylist()] for name, column in columns.items()}
    none = [""] * len(texts["item"])
    return catalogue_of(texts["item"], texts.get("title", none), texts.get("tags", none), file.shown)


def _lines(raw: bytes) -> list[str]:
    """MovieLens wrote Latin-1 until 1M and UTF-8 from 10M on; what reads as UTF-8 is."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = raw.decode("latin-1")
    return [line.rstrip("\r") for line in text.split("\n") if line.strip()]


def _require_width(rows: list[list[str]], width: int, path: Path) -> None:
    if any(len(row) != width for row in rows):
        raise SpecError(f"every line of {path} must have {width} fields, as MovieLens publishes it; one has not.")
