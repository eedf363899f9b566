"""The Netflix Prize's ratings: a file per movie, or files of many; `MOVIE:` above lines of `user,rating,date`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from models.errors import EnvironmentFault, SpecError
from tasks.sources import LocalFile
from tasks.text_files import parse, read_bytes

NAME = re.compile(r"(mv|combined_data)_\d+\.txt(\.gz)?")
BYTES_AT_ONCE = 2**26


def is_netflix_name(name: str) -> bool:
    return NAME.fullmatch(name) is not None


def netflix_files(folder: Path, what: str) -> list[LocalFile]:
    """The folder's files in the order of their names.

    Raises:
      SpecError: it has none, or has the same ratings in both forms.
      EnvironmentFault: it cannot be read.
    """
    try:
        names = sorted(path.name for path in folder.iterdir() if is_netflix_name(path.name))
    except OSError as error:
        raise EnvironmentFault(f"the folder {folder} cannot be read ({error.strerror}).") from None
    if not names:
        raise SpecError(
            f"{folder} is a folder and has no files of the Netflix Prize in it (mv_0000001.txt, combined_data_1.txt). "
            f"Name the folder that has, or a {what} file."
        )
    if len({name.partition("_")[0] for name in names}) > 1:
        raise SpecError(f"{folder} has both mv_ and combined_data_ files, the same ratings twice. Move one kind away.")
    return [LocalFile.at(folder / name, what) for name in names]


def read_netflix(file: LocalFile) -> dict[str, pa.ChunkedArray]:
    """The columns user, item and rating of a file or a folder; dates are not kept.

    Raises:
      SpecError: there is no such file, or it is not in this format.
      EnvironmentFault: it cannot be read.
    """
    files = netflix_files(file.path, file.what) if file.path.is_dir() else [file]
    chunks = [_columns(raw, file) for raw in _batches(files)]
    if not any(len(chunk["user"]) for chunk in chunks):
        raise SpecError(f"{file} names movies and has no {file.what} below them.")
    return {name: pa.chunked_array([chunk[name] for chunk in chunks]) for name in ("user", "item", "rating")}


def _batches(files: list[LocalFile]) -> Iterator[bytes]:
    """Whole files, joined until there is something worth parsing: there may be thousands of small ones."""
    waiting, size = [], 0
    for file in files:
        raw = read_bytes(file)
        first = raw[: raw.find(b"\n") + 1 or None].strip()
        if not re.fullmatch(rb"\d+:", first):
            raise SpecError(f"{file} must begin with the line MOVIE:, with lines user,rating,date below it.")
        if file.path.name.startswith("mv_") and raw.count(b":") > 1:
            raise SpecError(f"{file} must hold the ratings of one movie, and has the line of a second. Fetch it again.")
        waiting.append(raw)
        size += len(raw)
        if size >= BYTES_AT_ONCE:
            yield b"\n".join(waiting)
            waiting, size = [], 0
    if waiting:
        yield b"\n".join(waiting)


def _columns(raw: bytes, file: LocalFile) -> dict[str, pa.Array]:
    """A movie's line becomes a row with nothing but the movie in it; below it every row is of that movie."""
    if b"\r" in raw:
        raw = raw.replace(b"\r\n", b"\n")
    raw = (raw + b"\n").replace(b":\n", b":,,\n")
    table = parse(raw, delimiter=",", width=3, wanted=(0, 1), has_header=False, file=file)
    first, rating = (table.column(at).unify_dictionaries().combine_chunks() for at in range(2))
    labels = first.dictionary
    of_movie = np.append(pc.match_substring_regex(labels, r"^\d+:$").to_numpy(zero_copy_only=False), False)
    has_colon = np.append(pc.match_substring(labels, ":").to_numpy(zero_copy_only=False), False)
    codes = first.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    is_movie = of_movie[codes]
    if (has_colon[codes] != is_movie).any() or (is_movie & rating.is_valid().to_numpy(zero_copy_only=False)).any():
        raise SpecError(f"{file} has a line that is neither MOVIE: alone nor user,rating,date. Fetch it again.")
    above = np.cumsum(is_movie)[~is_movie] - 1
    movies = pc.replace_substring(labels.take(pa.array(codes[is_movie])), ":", "").dictionary_encode()
    keep = pa.array(~is_movie)
    return {
        "user": first.filter(keep),
        "item": pa.DictionaryArray.from_arrays(movies.indices.take(pa.array(above)), movies.dictionary),
        "rating": rating.filter(keep),
    }
