"""MovieLens from its publisher, GroupLens: fetched, checked and unpacked, whole or not at all."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from models.errors import EnvironmentFault, SpecError, quoted, shown
from tasks.downloads import download
from tasks.paths import home_path
from tasks.state import without_credentials

PUBLISHER = "https://files.grouplens.org/datasets/movielens"
MOST_BYTES = 2**30
"""What one unpacked file may hold: forty times what the largest has."""


@dataclass(frozen=True)
class DataSet:
    ratings: str
    items: str
    licence: str


DATA_SETS = {
    "ml-100k": DataSet("u.data", "u.item", "README"),
    "ml-1m": DataSet("ratings.dat", "movies.dat", "README"),
    "ml-latest-small": DataSet("ratings.csv", "movies.csv", "README.txt"),
}


def fetch(name: str, to: str) -> list[str]:
    """Make the new folder `to` with ratings, items and licence; returns lines that say what to do next.

    JALI_MOVIELENS_URL names a mirror.

    Raises:
      SpecError: there is no such data set, or `to` is there already.
      EnvironmentFault: the server does not answer, what it sent is damaged, or the disk cannot be written.
    """
    if name not in DATA_SETS:
        raise SpecError(f"there is no data set {quoted(name)} to fetch. Choose from {', '.join(DATA_SETS)}.")
    wanted, target = DATA_SETS[name], home_path(to)
    try:
        if target.exists():
            raise SpecError(f"{shown(target)} exists already. Use it, remove it, or choose another folder with --to.")
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as folder:
            archive = _downloaded(name, Path(folder))
            whole = Path(folder) / "whole"
            whole.mkdir()
            _unpack(archive, name, (wanted.ratings, wanted.items, wanted.licence), whole)
            whole.rename(target)
    except OSError as error:
        raise EnvironmentFault(
            f"{shown(target)} cannot be written ({error.strerror}). Choose another with --to."
        ) from None
    return [
        f"{name} is in {target}. Its licence is in {target / wanted.licence}: research use, no redistribution.",
        "Next:",
        f"  jali run --ratings {quote(str(target / wanted.ratings))} --items {quote(str(target / wanted.items))}",
    ]


def _downloaded(name: str, folder: Path) -> Path:
    """The archive, checked against the publisher's MD5 where there is one."""
    base = os.environ.get("JALI_MOVIELENS_URL", PUBLISHER).rstrip("/")
    archive, digest = folder / f"{name}.zip", folder / f"{name}.zip.md5"
    for file in (archive, digest):
        try:
            download(f"{base}/{file.name}", file, shown=f"{without_credentials(base)}/{file.name}")
        except SpecError:
            if file == archive:
                raise
            return archive
    published = re.search(rb"\b[0-9a-f]{32}\b", digest.read_bytes().lower())
    with archive.open("rb") as content:
        found = hashlib.file_digest(content, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if published is None or published[0].decode() != found:
        raise EnvironmentFault(f"{archive.name} does not have the MD5 published beside it: it is damaged. Fetch again.")
    return archive


def _unpack(archive: Path, name: str, files: tuple[str, ...], target: Path) -> None:
    """Copy the named members out, each to a name of ours: what else an archive says about paths is not followed."""
    try:
        with zipfile.ZipFile(archive) as packed:
            for file in files:
                with packed.open(f"{name}/{file}") as member:
                    content = member.read(MOST_BYTES + 1)
                if len(content) > MOST_BYTES:
                    raise zipfile.BadZipFile
                (target / file).write_bytes(content)
        return
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError, NotImplementedError, RuntimeError):
        pass
    raise EnvironmentFault(
        f"{archive.name} is no whole archive of {name} with {', '.join(files)} in it. Fetch it again."
    )
