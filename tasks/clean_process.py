"""A version loaded where nothing of Jali is, as on the machine that serves it, and asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from models.errors import Refused, quoted
from models.release import Release

SCRIPT = Path(__file__).with_name("load_alone.py")
LOAD_SECONDS = 60.0
"""For importing MLflow, loading and answering: seconds where there is nothing else to do."""
MOST_ASKED = 5

Request = dict[str, Any]


class CleanProcess:
    """It imports MLflow while nobody waits for it, then answers once."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, folder: Path, requests: Sequence[Request], seconds: float = LOAD_SECONDS) -> list[Mapping[str, Any]]:
        """What the version in `folder` answers, a request each.

        Raises:
          Refused: it cannot be loaded, or does not answer, or not in time.
        """
        line = json.dumps({"folder": str(folder), "requests": requests}) + "\n"
        try:
            said, _ = self._process.communicate(line, timeout=seconds)
            told = json.loads(said)
        except subprocess.TimeoutExpired:
            told = {"error": f"it did not answer within {seconds:g} seconds"}
        except (ValueError, OSError):
            told = {"error": "the process ended before it answered"}
        if "answers" not in told:
            raise Refused(
                f"the version does not load in a process of its own ({quoted(told.get('error'))}). Try "
                "`mlflow.pyfunc.load_model` on it, and release anew if it cannot be mended."
            )
        return list(told["answers"])


_early: ContextVar[CleanProcess | None] = ContextVar("_early", default=None)


@contextmanager
def started_early() -> Iterator[None]:
    """Start the one that `clean_process` then gives: it imports while there is something else to wait for."""
    with _started() as process:
        token = _early.set(process)
        try:
            yield
        finally:
            _early.reset(token)


@contextmanager
def clean_process() -> Iterator[CleanProcess]:
    """One that nobody has asked yet."""
    early = _early.get()
    if early is not None:
        yield early
        return
    with _started() as process:
        yield process


@contextmanager
def _started() -> Iterator[CleanProcess]:
    """In an empty folder, with no setting of ours, until the block ends."""
    with TemporaryDirectory(prefix="jali-") as folder:
        process = subprocess.Popen(  # noqa: S603 - our own script, by absolute path
            [sys.executable, "-IB", str(SCRIPT)],
            cwd=folder,
            env=_environment(folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # a Ctrl-C is for us, and we end it
        )
        try:
            yield CleanProcess(process)
        finally:
            process.kill()
            process.communicate()


def _environment(folder: str) -> dict[str, str]:
    """What a process needs anywhere: no address of a server, no password."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH") if name in os.environ}
    quiet = {"DO_NOT_TRACK": "true", "MLFLOW_DISABLE_TELEMETRY": "true", "OPENBLAS_NUM_THREADS": "1"}
    return {**kept, **quiet, "HOME": folder, "TMPDIR": folder, "GIT_PYTHON_REFRESH": "quiet"}


def made_up_requests(release: Release) -> list[Request]:
    """For recommendations and for predictions, from ratings that nobody gave: of public items, mid-scale."""
    places = np.linspace(0, len(release.items) - 1, min(MOST_ASKED, len(release.items))).astype(int)
    items, middle = [release.items[at] for at in places], (release.low + release.high) / 2
    own = [{"item": item, "rating": middle} for item in items]
    return [{"ratings": own, "n": MOST_ASKED}, {"ratings": own, "items": items}, {"ratings": [], "n": MOST_ASKED}]


def require_same_answers(release: Release, requests: Sequence[Request], answers: Sequence[Mapping[str, Any]]) -> str:
    """A sentence, if the version answered as its release does here.

    Raises:
      Refused: it did not.
    """
    pairs = zip(requests, answers, strict=False)
    alike = [_alike(_expected(release, request), answer) for request, answer in pairs]
    if alike != [True] * len(requests):
        raise Refused(
            "the version loads, and answers otherwise than its release does here. Its code, or a library that it runs "
            "with, computes something else: compare their versions, and release anew."
        )
    return f"a process without Jali loaded it and gave the same answers to {len(requests)} made-up requests."


def _expected(release: Release, request: Request) -> tuple[list[str], list[float]]:
    own = {entry["item"]: entry["rating"] for entry in request["ratings"]}
    if "items" in request:
        return request["items"], release.predict(own, request["items"]).tolist()
    best = release.recommend(own, request["n"])
    return [item for item, _, _ in best], [rating for _, _, rating in best]


def _alike(expected: tuple[list[str], list[float]], answer: Mapping[str, Any]) -> bool:
    items, ratings = expected
    try:
        return list(answer["items"]) == items and np.allclose(answer["ratings"], ratings, rtol=0, atol=1e-6)
    except (KeyError, TypeError, ValueError):
        return False
