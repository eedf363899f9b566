"""What is being served: one release at a time, whole, replaced by changing one reference."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any

from models.release import ARRAYS_FILE, RELEASE_FILE, Release, ReleaseError
from serving.metrics import Metrics
from serving.words import Champion, Word

FIRST_PAUSE, LONGEST_PAUSE = 2.0, 60.0
"""Seconds until a champion that cannot be loaded is tried again: at first, and at most."""
SILENCE = 15.0
"""Seconds without a word after which nobody can be said to be in touch with the registry."""


@dataclass(frozen=True)
class File:
    """One of the release's files, as it came."""

    content: bytes
    etag: str


@dataclass(frozen=True, eq=False)
class Served:
    """A release and all that is asked about it, made before the first request comes."""

    champion: Champion
    release: Release
    files: Mapping[str, File]
    since: datetime

    @property
    def model(self) -> dict[str, str]:
        return {"name": self.champion.name, "version": self.champion.version}

    @property
    def guarantee(self) -> dict[str, Any]:
        """What is promised of the release, as it says itself, and what the promotion adds to the conditions."""
        promised = dict(self.release.about.get("guarantee") or {})
        return {
            "model": self.model,
            "recommender": self.release.about.get("recommender"),
            "sentence": promised.get("sentence"),
            "guarantee": promised,
            "conditions_of_promotion": [text for name, text in sorted(self.champion.tags.items()) if text],
        }


def load(champion: Champion) -> Served:
    """The champion's files, checked and tried out.

    Raises:
      ReleaseError: they are not those that came from the registry, or not a release that answers.
    """
    files = {}
    for name in (ARRAYS_FILE, RELEASE_FILE):
        try:
            content = (champion.folder / name).read_bytes()
        except OSError as error:
            raise ReleaseError(f"{name} cannot be read ({error.strerror}).") from None
        digest = hashlib.sha256(content).hexdigest()
        if digest != champion.sha256.get(name):
            raise ReleaseError(f"{name} is not as it came from the registry.")
        files[name] = File(content, f'"{champion.version}-{digest}"')
    release = Release.load(champion.folder)
    _try_out(release)
    return Served(champion, release, files, datetime.now(UTC))


def _try_out(release: Release) -> None:
    """Answer once, which also computes what is computed but once.

    Raises:
      ReleaseError: it gives no answer.
    """
    middle = (release.low + release.high) / 2
    own = dict.fromkeys(release.items[:20], middle)
    if len(release.recommend({}, 1)) < min(1, len(release.items)):
        raise ReleaseError("the release recommends nothing, though it has items.")
    if len(release.recommend(own, 1)) < min(1, len(release.items) - len(own)):
        raise ReleaseError("the release recommends nothing to somebody who rated.")


@dataclass(frozen=True)
class Failure:
    """A champion that could not be loaded, with the stamps of its files then, and for how long not to try again."""

    what: tuple[Champion, object]
    pause: float
    at: float

    def holds_back(self, now: tuple[Champion, object]) -> bool:
        """Whether nothing has changed and the pause is not over: a try reads all there is."""
        return self.what == now and monotonic() - self.at < self.pause


def _stamps(folder: Path) -> list[tuple[int, ...]]:
    """What tells whether somebody touched the files."""
    stamps: list[tuple[int, ...]] = []
    for name in (ARRAYS_FILE, RELEASE_FILE):
        with suppress(OSError):
            stat = (folder / name).stat()
            stamps.append((stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns))
    return stamps


@dataclass
class Service:
    """What requests and the follower share. Requests read `served` once each and never change anything.

    Args:
      tell: shows a line on the terminal.
      stop: ends the server.
    """

    tell: Callable[[str], None]
    stop: Callable[[], None]
    served: Served | None = None
    word: Word | None = None
    ended: Word | None = None
    """The word that ended the service, where one did."""
    metrics: Metrics = field(default_factory=Metrics)
    _heard: float = 0.0
    _told: str | None = None
    _refused: dict[str, str] = field(default_factory=dict)
    """Versions that could not be loaded here, and why."""
    _failed: Failure | None = None

    def __post_init__(self) -> None:
        self.metrics.tell_touch(lambda: self.in_touch)

    @property
    def in_touch(self) -> bool:
        return self.word is not None and self.word.in_touch and monotonic() - self._heard < SILENCE

    @property
    def problem(self) -> str | None:
        """Why what is served may not be what should be."""
        if self.word is not None and monotonic() - self._heard >= SILENCE:
            return "nothing was heard of the registry for a while."
        if self.word is None:
            return None
        here = self._refused.get(self.word.champion.version) if self.word.champion else None
        return here or self.word.problem

    def hear(self, word: Word) -> None:
        """Do what the word says. Not on the event loop: loading takes as long as it takes."""
        self.word, self._heard = word, monotonic()
        if word.champion is not None and (self.served is None or word.champion != self.served.champion):
            self._serve(word.champion)
        elif word.champion is not None and word.refused is None:
            self._refused.pop(word.champion.version, None)  # for a while it could not be fetched, and now it is served
            self._failed = None
        if word.refused is not None and word.refused not in self._refused:
            self._refused[word.refused] = word.problem or ""
            self.metrics.load_failures.inc()
        if self.served is None and word.refusal is not None:
            self.ended = word
            self.stop()
        elif self.problem != self._told:
            self._told = self.problem
            self.tell(f"jali: {self.problem}" if self.problem else "The registry is in touch again, and all is well.")

    def _serve(self, champion: Champion) -> None:
        now = (champion, _stamps(champion.folder))
        if self._failed is not None and self._failed.holds_back(now):
            return
        try:
            served = load(champion)
        except Exception as error:  # whatever is wrong with it, what is served goes on being served
            why = str(error) if isinstance(error, ReleaseError) else f"it cannot be loaded ({type(error).__name__})."
            self._refuse(champion, why)
            pause = FIRST_PAUSE
            if self._failed is not None and self._failed.what == now:
                pause = min(2 * self._failed.pause, LONGEST_PAUSE)
            self._failed = Failure(now, pause, monotonic())
            return
        self.served, self._failed = served, None
        self._refused.pop(champion.version, None)
        self.metrics.serves(champion.name, champion.version)
        self.tell(f"Serving {champion.name} v{champion.version}.")

    def _refuse(self, champion: Champion, why: str) -> None:
        told = f"{champion.name} v{champion.version} is not served: {why}"
        if self.served is not None:
            told += f" v{self.served.champion.version} goes on being served."
        if self._refused.get(champion.version) != told:
            self.metrics.load_failures.inc()
        self._refused[champion.version] = told
