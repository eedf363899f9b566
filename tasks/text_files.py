"""Read delimited text, compressed or not, and complain about it without quoting it."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Collection, Sequence

import pyarrow as pa
import pyarrow.csv

from models.errors import EnvironmentFault, SpecError
from tasks.paths import require_file
from tasks.sources import LocalFile
from tasks.table import NULLS, TEXT


def read_bytes(file: LocalFile) -> bytes:
    """The whole file, decompressed when its name ends in .gz.

    Raises:
      SpecError: it does not exist, is a folder, is empty, is binary or is damaged.
      EnvironmentFault: it exists and cannot be read.
    """
    require_file(file.path, file.what)
    try:
        raw = file.path.read_bytes()
    except OSError as error:
        raise EnvironmentFault(f"{file} cannot be read ({error.strerror}).") from None
    if file.path.suffix == ".gz":
        try:
            raw = gzip.decompress(raw)
        except (OSError, EOFError, zlib.error):
            raise SpecError(f"{file} ends in .gz and is not a whole gzip file. Fetch it again.") from None
    if not raw or raw.isspace():
        raise SpecError(f"{file} is empty. Give a file with one line per {file.what.rstrip('s')}.")
    if b"\0" in raw:
        raise SpecError(f"{file} is binary; Jali reads delimited text, plain or as .gz, and .parquet.")
    return raw.removeprefix(b"\xef\xbb\xbf")


def first_fields(raw: bytes, delimiter: str) -> list[str]:
    """The fields of the first line, as they stand, without quotes and blanks around them."""
    end = raw.find(b"\n")  # no split: it would copy the rest
    line = raw[: end if end >= 0 else None].decode(errors="replace").rstrip("\r")
    return [field.strip().strip('"') for field in line.split(delimiter)]


def parse(
    raw: bytes,
    *,
    delimiter: str,
    width: int,
    wanted: Collection[int],
    has_header: bool,
    file: LocalFile,
    nulls: Sequence[str] = NULLS,
) -> pa.Table:
    """The `wanted` of `width` columns, called by their place, as dictionary-encoded text with nulls.

    Columns go under their number: a header may name two alike, or hold anything at all.

    Raises:
      SpecError: a line has another number of columns, or the text is not UTF-8.
    """
    if len(delimiter) > 1:
        raw, delimiter = raw.replace(delimiter.encode(), b"\t"), "\t"
    names = [str(at) for at in range(width)]
    chosen = [str(at) for at in wanted]
    try:
        return pyarrow.csv.read_csv(
            pa.BufferReader(raw),
            pyarrow.csv.ReadOptions(column_names=names, skip_rows=int(has_header)),
            pyarrow.csv.ParseOptions(delimiter=delimiter, quote_char=False if delimiter in "\t|" else '"'),
            pyarrow.csv.ConvertOptions(
                include_columns=chosen,
                column_types=dict.fromkeys(chosen, TEXT),
                null_values=list(nulls),
                strings_can_be_null=True,
            ),
        )
    except pa.ArrowInvalid as error:
        kind = str(error)  # read here and not passed on: it quotes the line
    if "Expected" in kind:
        shown = {"\t": "a tab"}.get(delimiter, repr(delimiter))
        raise SpecError(
            f"{file} has a line that does not have {width} columns separated by {shown}, as the first line has. Mend "
            "the file, or declare the delimiter with --delimiter."
        )
    if "straddling" in kind:  # two of the reader's blocks, which have a megabyte
        raise SpecError(
            f"{file} has a line of a megabyte or more: it is no table of {file.what}, a quotation mark is left open, "
            "or its line ends are not those of Unix or Windows. Mend the file."
        )
    raise SpecError(f"{file} cannot be read as UTF-8 text in columns. Convert it to UTF-8.")
