"""Read delimited text, compressed or not, and complain about it without quoting it."""

from __future__ import annotations

import gzip
import stat
import zlib
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.csv

from models.errors import EnvironmentFault, SpecError, shown
from tasks.table import NULLS


def expanded(path: str) -> Path:
    """The path with `~` as the home it names; as it stands where there is no such home."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def require_file(path: Path, what: str) -> None:
    """Raise SpecError unless there is a file at `path`, EnvironmentFault where one may not even look."""
    try:
        mode = path.stat().st_mode
    except PermissionError as error:
        raise EnvironmentFault(f"the {what} file {shown(path)} cannot be read ({error.strerror}).") from None
    except (OSError, ValueError):  # too long for a name, or with characters that no name has
        raise SpecError(
            f"the {what} file {shown(path)} does not exist. Check the path; it is taken from the working folder."
        ) from None
    if stat.S_ISDIR(mode):
        raise SpecError(f"{shown(path)} is a folder; name the {what} file inside it.")
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        raise SpecError(f"{shown(path)} is a device, which may never end; name a file of {what}.")


def read_bytes(path: Path, what: str) -> bytes:
    """The whole file, decompressed when its name ends in .gz.

    Raises:
      SpecError: it does not exist, is a folder, is empty, is binary or is damaged.
      EnvironmentFault: it exists and cannot be read.
    """
    require_file(path, what)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise EnvironmentFault(f"the {what} file {path} cannot be read ({error.strerror}).") from None
    if path.suffix == ".gz":
        try:
            raw = gzip.decompress(raw)
        except (OSError, EOFError, zlib.error):
            raise SpecError(
                f"the {what} file {path} ends in .gz and is not a whole gzip file. Fetch it again."
            ) from None
    if not raw.strip():
        raise SpecError(f"the {what} file {path} is empty. Give a file with one line per {what.rstrip('s')}.")
    if b"\0" in raw:
        raise SpecError(f"the {what} file {path} is binary; Jali reads delimited text, plain or as .gz.")
    return raw.removeprefix(b"\xef\xbb\xbf")


def first_fields(raw: bytes, delimiter: str) -> list[str]:
    """The fields of the first line, as they stand, without quotes and blanks around them."""
    line = raw.split(b"\n", 1)[0].decode(errors="replace").rstrip("\r")
    return [field.strip().strip('"') for field in line.split(delimiter)]


def parse(
    raw: bytes,
    *,
    delimiter: str,
    names: list[str],
    has_header: bool,
    path: Path,
    what: str,
    nulls: Sequence[str] = NULLS,
) -> pa.Table:
    """All columns as dictionary-encoded text with nulls, named `names` in order.

    Raises:
      SpecError: a line has another number of columns, or the text is not UTF-8.
    """
    if len(delimiter) > 1:
        raw, delimiter = raw.replace(delimiter.encode(), b"\t"), "\t"
    text = pa.dictionary(pa.int32(), pa.string())
    try:
        return pyarrow.csv.read_csv(
            pa.BufferReader(raw),
            pyarrow.csv.ReadOptions(column_names=names, skip_rows=int(has_header)),
            pyarrow.csv.ParseOptions(delimiter=delimiter, quote_char=False if delimiter in "\t|" else '"'),
            pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(names, text), null_values=list(nulls), strings_can_be_null=True
            ),
        )
    except pa.ArrowInvalid as error:
        kind = str(error)  # read here and not passed on: it quotes the line
    if "Expected" in kind:
        shown = {"\t": "a tab"}.get(delimiter, repr(delimiter))
        raise SpecError(
            f"the {what} file {path} has a line that does not have {len(names)} columns separated by {shown}, "
            "as the first line has. Mend the file, or declare the delimiter with --delimiter."
        )
    raise SpecError(f"the {what} file {path} cannot be read as UTF-8 text in columns. Convert it to UTF-8.")
