"""Watches the registry for the version to be served, in a process of its own beside the web server's.

MLflow takes seconds to import and hundreds of megabytes, and waits where it is not answered: none of that may hold up
a request. This process fetches the champion's two files into `.jali/serving/SOURCE/`, whole or not at all, and says on
its standard output what is to be served (serving/words.py). It ends when its standard input does.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from threading import Event, Lock, Thread, Timer
from typing import TYPE_CHECKING, BinaryIO

from pydantic import ValidationError

from models.release import ARRAYS_FILE, RELEASE_FILE, Release, ReleaseError
from serving.words import Champion, Word
from tasks.durable import to_disk, write_whole
from tasks.registered import (
    CHAMPION,
    CHECKSUM,
    CONDITION_TAG,
    RELEASE_FOLDER,
    SERVING,
    checksum,
    download_version,
    serving_name,
)
from tasks.state import State, prepare

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

PAUSE = 1.0
"""Seconds between two looks at the registry."""
PATIENCE = 1.5
"""Seconds after which what was served last is served again, if MLflow has not answered by then."""
ANEW = 10.0
"""Seconds after which a version that could not be fetched is tried again."""
KEPT = 2
PUBLIC_TAGS = (CONDITION_TAG,)
"""Of a version's tags: what those who ask may read. Who promoted it and why is not for them."""
ABSENT = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")
"""MLflow's codes for a model that is not there, and for one without such an alias."""


class Cache:
    """The newest champions of a source, on the disk, for when MLflow is down. Two servers may share it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def _pointer(self) -> Path:
        return self._folder / "champion.json"

    def champion(self) -> Champion | None:
        """The one that was kept last, if its files are there as they came."""
        try:
            champion = Champion.model_validate_json(self._pointer.read_bytes())
            return champion if _digests(champion.folder) == champion.sha256 else None
        except (OSError, ValidationError):
            return None

    def keep(self, version: ModelVersion) -> Champion:
        """Fetch the version's files unless they are here, and remember it as the champion.

        Raises:
          ReleaseError: they are no release that this Jali can read.
          MlflowException, OSError: they are not to be had.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        place = self._folder / _identity(version)
        before = self.champion()
        if not (before and before.folder == place):
            self._fetch(version, place)
        champion = Champion(
            name=version.name,
            version=str(version.version),
            folder=place,
            sha256=_digests(place),
            tags={name: version.tags[name] for name in PUBLIC_TAGS if name in version.tags},
        )
        os.utime(place)
        write_whole(self._pointer, champion.model_dump_json().encode())
        self._delete_old()
        return champion

    def forget(self) -> None:
        """There is no champion any more, so that none is served after a restart."""
        self._pointer.unlink(missing_ok=True)

    def _fetch(self, version: ModelVersion, place: Path) -> None:
        """Put the files at `place`, in one step; what was there, and is not the last champion's, may be damaged."""
        with tempfile.TemporaryDirectory(prefix=".new-", dir=self._folder, ignore_cleanup_errors=True) as scratch:
            there = download_version(version.name, str(version.version), Path(scratch))
            if version.tags.get(CHECKSUM, checksum(there)) != checksum(there):
                raise ReleaseError("its files are not those that were promoted. Restore them, or promote again.")
            whole = Path(scratch) / "whole"
            whole.mkdir()
            for name in (ARRAYS_FILE, RELEASE_FILE):
                shutil.copyfile(there / RELEASE_FOLDER / name, whole / name)
                to_disk(whole / name)
            Release.load(whole)
            if place.exists():
                place.rename(Path(scratch) / "before")
            with suppress(FileExistsError):  # another server was faster
                whole.rename(place)
        to_disk(self._folder)

    def _delete_old(self) -> None:
        folders = [path for path in self._folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
        for path in sorted(folders, key=lambda path: path.stat().st_mtime)[:-KEPT]:
            shutil.rmtree(path, ignore_errors=True)


def _digests(folder: Path) -> dict[str, str]:
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in (ARRAYS_FILE, RELEASE_FILE)}


def _identity(version: ModelVersion) -> str:
    """A folder's name for a version: numbers start again where a registered model was deleted or MLflow is another."""
    made = f"{version.source} {version.creation_timestamp}".encode()
    return f"{version.version}-{hashlib.sha256(made).hexdigest()[:12]}"


class Watch:
    """Looks at the registry, again and again."""

    def __init__(self, state: State, source: str | None) -> None:
        self._state, self._source = state, source
        self._client: MlflowClient | None = None
        self._kept: tuple[str, Champion] | None = None
        self._failed: tuple[str, str, float] | None = None

    def before_asking(self) -> Word | None:
        """What can be said without MLflow, if anything can: which source is meant, what is kept does not say."""
        if self._source is None:
            return None
        word = self._lost("MLflow has not answered yet")
        return word if word.champion else None

    def look(self) -> Word:
        """What the registry says now. Raises nothing."""
        if self._state.tracks_locally and not self._state.tracking_database.exists():  # MLflow would make its tables
            return self._lost("MLflow's database is gone") if self._cached() else self._absent()
        from mlflow.exceptions import MlflowException  # seconds to import

        try:
            client = self._open()
            if self._source is None:
                sources = _sources_with_champion(client)
                if len(sources) != 1:
                    return _no_single(sources)
                (self._source,) = sources
            return self._word_of(client.get_model_version_by_alias(serving_name(self._source), CHAMPION))
        except MlflowException as error:
            if error.error_code in ABSENT:
                return self._absent()
            return self._lost(f"MLflow does not answer ({error.error_code})")
        except Exception as error:  # what it says may hold an address with a password
            return self._lost(f"MLflow does not answer ({type(error).__name__})")

    def _open(self) -> MlflowClient:
        if self._client is None:
            import mlflow

            mlflow.set_tracking_uri(self._state.tracking_uri)
            self._client = mlflow.MlflowClient()
        return self._client

    def _cache_of(self, source: str) -> Cache:
        return Cache(self._caches / source)

    @property
    def _cache(self) -> Cache:
        assert self._source is not None
        return self._cache_of(self._source)

    @property
    def _caches(self) -> Path:
        return self._state.folder / "serving"

    def _cached(self) -> list[str]:
        """The sources of which a champion is kept here, among those to be served."""
        kept = sorted(pointer.parent.name for pointer in self._caches.glob("*/champion.json"))
        return kept if self._source is None else [source for source in kept if source == self._source]

    def _word_of(self, version: ModelVersion) -> Word:
        now = f"{_identity(version)} {[version.tags.get(name) for name in PUBLIC_TAGS]}"
        if self._kept and self._kept[0] == now and self._kept[1].folder.is_dir():
            return Word(champion=self._kept[1], in_touch=True)
        if self._failed and self._failed[0] == now and time.monotonic() < self._failed[2]:
            return self._refused(version, self._failed[1])
        try:
            self._kept = (now, self._cache.keep(version))
        except Exception as error:
            why = (
                str(error) if isinstance(error, ReleaseError) else f"its files cannot be had ({type(error).__name__})."
            )
            self._failed = (now, why, time.monotonic() + ANEW)
            return self._refused(version, why)
        return Word(champion=self._kept[1], in_touch=True)

    def _refused(self, version: ModelVersion, why: str) -> Word:
        problem = f"{version.name} v{version.version} is the champion and is not served: {why}"
        kept = self._kept[1] if self._kept else self._cache.champion()
        return Word(champion=kept, in_touch=True, refused=str(version.version), problem=problem, refusal=1)

    def _absent(self) -> Word:
        of = f" of {self._source}" if self._source else ""
        if self._source:
            self._cache.forget()
            self._kept = None
        problem = (
            f"no version{of} is promoted. Publish one with `jali run`, then promote it: `jali promote RECOMMENDER"
            f"{f' --source {self._source}' if self._source else ''}`."
        )
        return Word(in_touch=True, problem=problem, refusal=1)

    def _lost(self, what: str) -> Word:
        """MLflow is down: what was served last is served on."""
        sources = self._cached()
        if len(sources) > 1:
            return Word(in_touch=False, problem=_which(sources), refusal=2)
        champion = None
        if sources:
            champion = self._kept[1] if self._kept else self._cache_of(sources[0]).champion()
        if champion is None:
            problem = f"{what}, and no champion is kept here from before. Start MLflow, or mend MLFLOW_TRACKING_URI."
            return Word(in_touch=False, problem=problem, refusal=3)
        problem = f"{what}; {champion.name} v{champion.version} is served as it was kept here."
        return Word(champion=champion, in_touch=False, problem=problem)


def _sources_with_champion(client: MlflowClient) -> list[str]:
    models = client.search_registered_models(f"name LIKE '%{SERVING}'", max_results=1000)
    return sorted(model.name.removesuffix(SERVING) for model in models if CHAMPION in model.aliases)


def _no_single(sources: list[str]) -> Word:
    if sources:
        return Word(in_touch=True, problem=_which(sources), refusal=2)
    problem = "no version is promoted. Publish one with `jali run`, then promote it: `jali promote RECOMMENDER`."
    return Word(in_touch=True, problem=problem, refusal=1)


def _which(sources: list[str]) -> str:
    return f"say which source to serve, with --source. There are {', '.join(sources)}."


def watch(source: str | None, words: BinaryIO) -> None:
    """Say words for ever."""
    os.nice(10)  # requests come first
    watching = Watch(prepare(), source)
    saying, has_asked = Lock(), Event()

    def say(word: Word) -> None:
        words.write(word.model_dump_json().encode() + b"\n")
        words.flush()

    def say_what_is_kept() -> None:
        word = watching.before_asking()
        with saying:
            if word is not None and not has_asked.is_set():
                say(word)

    waiting = Timer(PATIENCE, say_what_is_kept)
    waiting.daemon = True
    waiting.start()
    while True:
        word = watching.look()
        with saying:
            has_asked.set()
            say(word)
        time.sleep(PAUSE)


def _end_with_the_server() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def main() -> None:
    words = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # whatever libraries print is no word
    Thread(target=_end_with_the_server, daemon=True).start()
    with suppress(BrokenPipeError):
        watch(sys.argv[1] if len(sys.argv) > 1 else None, words)


if __name__ == "__main__":
    main()
