"""Read columns of a Parquet file, and complain about it without quoting it."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.parquet

from models.errors import EnvironmentFault, SpecError
from tasks.paths import require_file
from tasks.sources import LocalFile
from tasks.table import as_text


def parquet_names(file: LocalFile) -> list[str]:
    """The names of its columns.

    Raises:
      SpecError: it is missing, or no Parquet file.
      EnvironmentFault: it cannot be read.
    """
    names: list[str] = _opened(file).schema_arrow.names
    return names


def read_parquet(file: LocalFile, places: Mapping[str, int]) -> dict[str, pa.ChunkedArray]:
    """The columns at `places`, as dictionary-encoded text.

    Raises:
      SpecError: it is damaged, or a column holds lists, records or bytes.
      EnvironmentFault: it cannot be read.
    """
    opened = _opened(file)
    schema = opened.schema_arrow
    if any(pa.types.is_nested(schema.field(at).type) for at in places.values()):
        raise SpecError(f"{file} has lists or records in a column that should hold one value a row. Unnest it.")
    names = {name: schema.field(at).name for name, at in places.items()}
    try:
        table = opened.read(columns=list(names.values()))
        return {name: as_text(table.column(table.column_names.index(column))) for name, column in names.items()}
    except (pa.ArrowException, OSError):
        pass
    raise SpecError(f"{file} has columns that cannot be read: it is damaged, or holds bytes. Fetch or write it again.")


def _opened(file: LocalFile) -> pa.parquet.ParquetFile:
    require_file(file.path, file.what)
    try:
        return pa.parquet.ParquetFile(file.path, memory_map=True)
    except (pa.ArrowException, UnicodeDecodeError):
        pass
    except OSError as error:  # with a number from the system; without one from Arrow, about damaged metadata
        if error.errno:
            raise EnvironmentFault(f"{file} cannot be read ({error.strerror}).") from None
    raise SpecError(f"{file} is no Parquet file, or not a whole one. Say --format if it is of another kind.")
