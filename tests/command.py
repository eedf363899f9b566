"""The command as a person types it, in a process of its own, for whatever test wants to see it run."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from models.ratings import Ratings
from tasks.ledger import Ledger
from tasks.servers import _free_port, _server
from tasks.state import State
from tests.given_tables import give_prefects_tables, give_tables
from tests.warm import run_warm, watched_warm

JALI = str(Path(sys.executable).with_name("jali"))
SECRET = "unmistakable-user"
SECONDS = 240
"""No command takes longer."""
TWO = ("--folds", "2", "--recommenders", "pmf,pdp-histogram")
"""As little as a whole run can be, where the recommenders are not what is tested."""


def environment(**more: str) -> dict[str, str]:
    ours = ("MLFLOW_", "PREFECT_", "JALI_", "COLUMNS")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)} | more


def jali(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """The command, in a process that saves the time of most imports, and to a run that of making tables."""
    if arguments[:1] == ("run",):
        give_tables(folder)
    return as_text(run_warm([*arguments], folder, environment(**more), SECONDS))


def as_text(done: subprocess.CompletedProcess[bytes]) -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def jali_as_installed(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [JALI, *arguments],
        cwd=folder,
        env=environment(**more),
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )


def disturbed(
    arguments: list[str],
    folder: Path,
    stage: str,
    disturb: Callable[[int], None],
    program: str | None = None,
    **more: str,
) -> tuple[subprocess.CompletedProcess[str], float]:
    """Run the command, or `program`, and when it says that `stage` begins call `disturb` with its process id.

    Also returns the seconds from there to its end.
    """
    give_tables(folder)
    said, since = [], time.monotonic()
    with watched_warm(arguments, folder, environment(**more), program) as watched:
        for line in watched.lines:
            said.append(line)
            if line.rstrip().endswith(stage):
                disturb(watched.process.pid)
                since = time.monotonic()
        code = watched.process.wait(60)
        took = time.monotonic() - since
        return subprocess.CompletedProcess(arguments, code, watched.printed(), "".join(said)), took


def signalled(
    arguments: list[str], folder: Path, stage: str, how: signal.Signals, program: str | None = None, **more: str
) -> tuple[subprocess.CompletedProcess[str], float]:
    """The same, and send `how` to it and to what it started in its session half a second later."""

    def send(process: int) -> None:
        time.sleep(0.5)
        os.killpg(process, how)

    return disturbed(arguments, folder, stage, send, program, **more)


def write_ratings(folder: Path, ratings: Ratings) -> list[str]:
    """A ratings file and an items file in `folder`; returns the arguments that name them."""
    lines = [
        f"{SECRET}-{user},{ratings.catalogue.items[item]},{value:g}"
        for user, item, value in zip(ratings.users, ratings.items, ratings.values, strict=True)
    ]
    (folder / "films.csv").write_text("\n".join(["user,item,rating", *lines, ""]))
    items = [
        f"{item},{title},a|b" for item, title in zip(ratings.catalogue.items, ratings.catalogue.titles, strict=True)
    ]
    (folder / "items.csv").write_text("\n".join(["item,title,genres", *items, ""]))
    return ["--ratings", "films.csv", "--items", "items.csv", "--scale", "1:5:1"]


def outcomes(folder: Path) -> list[str]:
    """What became of every reservation in the folder's ledger."""
    return [entry.outcome for entry in Ledger(State(folder / ".jali")).entries()]


def clean_text(said: str) -> str:
    assert "Traceback" not in said
    assert SECRET not in said
    return said


def clean(outcome: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    clean_text(outcome.stdout + outcome.stderr)
    return outcome


@contextmanager
def open_prefect(folder: Path) -> Iterator[str]:
    """A Prefect server of somebody else's, with its things in `folder`: it asks for no password; yields its address."""
    url = f"http://127.0.0.1:{(port := _free_port())}/api"
    settings = {"PREFECT_HOME": str(folder), "PREFECT_API_URL": url}
    give_prefects_tables(folder)
    command = ["prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    with _server(command, port, "/api/health", State(folder), settings) as wait:
        wait()
        yield url


@pytest.fixture(scope="session")
def shared_prefect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prefect server for the runs of which the server is not what is tested."""
    with open_prefect(tmp_path_factory.mktemp("prefect")) as url:
        yield url


def processes_of(folder: Path) -> list[Path]:
    """Under /proc, the processes that have this folder's state as their home: the servers."""
    mark = f"PREFECT_HOME={folder / '.jali' / 'prefect'}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (process / "environ").read_bytes():
                found.append(process)
    return found


def servers_of(folder: Path) -> list[str]:
    """What the processes are called that still run for this folder."""
    called = []
    for process in processes_of(folder):
        with suppress(OSError):
            called.append((process / "cmdline").read_text())
    return called


def privacy_of(process: Path) -> tuple[str, str]:
    """A process's umask, and how large a core dump it may leave."""
    umask = re.search(r"^Umask:\s*(\d+)", (process / "status").read_text(), re.MULTILINE)
    core = re.search(r"^Max core file size\s+(\S+)", (process / "limits").read_text(), re.MULTILINE)
    assert umask is not None
    assert core is not None
    return umask[1], core[1]


PRIVATE = ("0077", "0")
