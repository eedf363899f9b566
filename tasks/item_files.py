"""Item files: the public catalogue, with titles and features.

`u.item` (ML-100K), `movies.dat` (ML-1M, ML-10M), or a CSV whose header names `item` (or movieId),
and, where there are, `title` and `genres` (or tags): several tags are separated by `|`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from models.errors import SpecError
from models.ratings import Catalogue
from tasks.rating_files import ALIASES
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
NO_GENRES = "(no genres listed)"
TAG_COLUMNS = ("genres", "tags", "features")


def read_items(path: Path) -> Catalogue:
    """The catalogue in the file's order.

    Raises:
      SpecError: the file is missing or damaged, or an item occurs twice.
      EnvironmentFault: it cannot be read.
    """
    raw = read_bytes(path, "items")
    name = path.name.removesuffix(".gz")
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
    return _read_csv(raw, path)


def catalogue_of(items: list[str], titles: list[str], tags: list[str], where: str) -> Catalogue:
    """A public catalogue; `tags` holds one `|`-separated text per item."""
    if len(set(items)) < len(items) or "" in items:
        raise SpecError(f"{where} must name every item once; an id is missing or occurs again.")
    tags_of = [[tag for tag in text.split("|") if tag and tag != NO_GENRES] for text in tags]
    names = sorted({tag for tags in tags_of for tag in tags})
    column = {name: at for at, name in enumerate(names)}
    features = np.zeros((len(items), len(names)), np.float32)
    for row, its_tags in enumerate(tags_of):
        features[row, [column[tag] for tag in its_tags]] = 1
    return Catalogue(tuple(items), tuple(titles), features, tuple(names))


def _read_csv(raw: bytes, path: Path) -> Catalogue:
    header = [name.lower() for name in first_fields(raw, ",")]
    item = next((header.index(alias) for alias in ALIASES["item"] if alias in header), None)
    if item is None:
        raise SpecError(
            f"the first line of {path} must name its columns, with item (or movieId) among them, and title and genres "
            "where there are any. Add a header line."
        )
    names = [str(at) for at in range(len(header))]
    table = parse(raw, delimiter=",", names=names, has_header=True, path=path, what="items", nulls=("",))

    def texts(at: int | None) -> list[str]:
        return [""] * len(table) if at is None else [text or "" for text in table.column(at).to_pylist()]

    title = header.index("title") if "title" in header else None
    tags = next((header.index(name) for name in TAG_COLUMNS if name in header), None)
    return catalogue_of(texts(item), texts(title), texts(tags), str(path))


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
