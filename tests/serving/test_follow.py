"""The thread that hears the watcher: whatever fails, it goes on, and says so meanwhile."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from serving import follow
from serving.follow import Follower
from serving.service import Service
from serving.words import Word
from tests.serving.releases import Client, champion, service


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "FIRST_PAUSE", 0.01)


def says(*lines: str, lives: bool = False) -> subprocess.Popen[bytes]:
    """A watcher that says these lines and ends, or goes on until its input does."""
    script = 'printf "%s\\n" "$@"' + ("; cat" if lives else "; exit 3")
    return subprocess.Popen(["/bin/sh", "-c", script, "sh", *lines], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def following(hears: Service, *starts: Callable[[], subprocess.Popen[bytes]]) -> Follower:
    remaining: Iterator[Callable[[], subprocess.Popen[bytes]]] = iter(starts)
    follower = Follower(lambda: next(remaining)())
    follower.follow(hears)
    return follower


def within_a_moment(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def no_process() -> subprocess.Popen[bytes]:
    raise BlockingIOError(11, "Resource temporarily unavailable")


def test_a_watcher_that_cannot_be_started_for_a_while_is_started_later(tmp_path: Path) -> None:
    told: list[str] = []
    hears = service(tell=told.append)
    word = Word(champion=champion(tmp_path), in_touch=True).model_dump_json()
    follower = following(hears, says, no_process, no_process, lambda: says(word, lives=True))
    within_a_moment(lambda: hears.served is not None)
    assert told[0] == "jali: the watcher of the registry ended (3); it is started again."
    assert Client(hears).get("/readyz").json()["problem"] is None
    follower.end()


def test_a_word_that_cannot_be_done_is_not_the_last_one_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hears = service()
    real, failures = hears.hear, [MemoryError(), OSError()]

    def hear(word: Word) -> None:
        if word.in_touch and failures:
            raise failures.pop()
        real(word)

    monkeypatch.setattr(hears, "hear", hear)
    word = Word(champion=champion(tmp_path), in_touch=True).model_dump_json()
    follower = following(hears, lambda: says(word, "half a wo", word, word, lives=True))
    within_a_moment(lambda: hears.served is not None)
    assert not failures
    follower.end()
