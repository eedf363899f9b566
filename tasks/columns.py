"""Read named columns from wherever they are: delimited text with a header, Parquet, or a database."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import pyarrow as pa

from models.errors import SpecError
from tasks.databases import read_database
from tasks.parquet_files import parquet_names, read_parquet
from tasks.sources import LocalFile, TableSource, local_file
from tasks.text_files import first_fields, parse, read_bytes

Choose = Callable[[list[str], str], Mapping[str, int]]
"""From the names of a table's columns, and words for where they stand, to the places of those wanted, by our names."""


class Read(NamedTuple):
    """All names in the table's order, and the chosen columns, dictionary-encoded text, under our names."""

    header: list[str]
    columns: Mapping[str, pa.ChunkedArray]


def read_columns(source: TableSource, choose: Choose, what: str, kind: str) -> Read:
    """The columns that `choose` takes, from a database or from a file that names its columns.

    Args:
      what: ratings or preferences, for sentences.
      kind: parquet, tsv or csv, where it is a file.

    Raises:
      SpecError: the table is not there, or not what it should be.
      EnvironmentFault: it cannot be read.
    """
    if source.is_database:
        where = f"the {'query' if source.query else 'table'} in {source.path}"
        read = Read(*read_database(source, lambda names: choose(names, where)))
    else:
        with local_file(source, what) as file:
            where, delimiter = str(file), source.delimiter or ("\t" if kind == "tsv" else ",")
            read = _read_parquet(file, choose) if kind == "parquet" else _read_text(file, choose, delimiter)
    if any(len(column) == 0 for column in read.columns.values()):
        raise SpecError(f"{where} names its columns and has no {what} below.")
    return read


def _read_parquet(file: LocalFile, choose: Choose) -> Read:
    header = parquet_names(file)
    return Read(header, read_parquet(file, choose(header, str(file))))


def _read_text(file: LocalFile, choose: Choose, delimiter: str) -> Read:
    raw = read_bytes(file)
    header = first_fields(raw, delimiter)
    places = choose(header, f"the first line of {file.shown}")
    wanted = set(places.values())
    table = parse(raw, delimiter=delimiter, width=len(header), wanted=wanted, has_header=True, file=file)
    return Read(header, {name: table.column(str(at)) for name, at in places.items()})


def named_places(
    header: list[str], aliases: Mapping[str, tuple[str, ...]], declared: Mapping[str, str]
) -> tuple[dict[str, int], list[str]]:
    """Where the columns named by `aliases` are, those `declared` by their own names; and which are missing."""
    lowered = [name.lower() for name in header]
    places, missing = {}, []
    for column, usual in aliases.items():
        own = declared.get(column)
        found = [header.index(own)] if own in header else []
        if own is None:
            found = [lowered.index(alias) for alias in usual if alias in lowered]
        if found:
            places[column] = found[0]
        else:
            missing.append(own or column)
    return places, missing


def missing_columns(where: str, n_columns: int, missing: list[str], example: str) -> SpecError:
    """A complaint that never quotes a header: where there is none, its first line is a rating."""
    hint = " Only one was found: is the delimiter another? Declare it with --delimiter." if n_columns == 1 else ""
    return SpecError(
        f"{where} must name the columns, and no column is named {' or '.join(missing)}.{hint} Add a header line, or "
        f"say what the columns are called with {example}."
    )
