"""The command in a process of its own, in which what it imports from others is there already: most of what it costs.

One process imports these libraries and is forked for each command. Not among them are Prefect and MLflow, which read
their settings when they are imported, OpenDP, whose noise no two processes may share, and anything of ours.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

LIBRARIES = (
    "alembic.migration", "dp_accounting.rdp", "fastapi", "git", "google.protobuf.json_format", "great_expectations",
    "httpx", "matplotlib.figure", "numba", "opentelemetry.sdk.trace", "pandas", "pyarrow.csv", "pyarrow.parquet",
    "rich.progress", "scipy.special", "sqlalchemy.orm", "sqlalchemy.dialects.postgresql.asyncpg", "websockets", "yaml",
)  # fmt: skip
READ_ON_IMPORT = {"GX_ANALYTICS_ENABLED": "false", "GIT_PYTHON_REFRESH": "quiet", "OPENBLAS_NUM_THREADS": "1"}
"""Of the settings that tasks/state.py makes, those of these libraries."""


@dataclass
class Forked:
    """A process that the forking one made, which does nothing else until it ends."""

    pid: int
    forks: socket.socket
    code: int | None = None

    def wait(self, timeout: float) -> int:
        """Its exit code, as `subprocess` has them.

        Raises:
          TimeoutError: it took longer than `timeout` seconds, and was killed.
        """
        if self.code is None:
            self.forks.settimeout(timeout)
            try:
                self.code = self._ended()
            except TimeoutError:
                self.forks.settimeout(None)
                self.kill()
                raise
            self.forks.settimeout(None)
        return self.code

    def kill(self) -> None:
        """And what it started in its session, if it has not ended."""
        if self.code is None:
            with suppress(ProcessLookupError):  # it has ended, and we have not heard of it
                os.killpg(self.pid, signal.SIGKILL)
            self.code = self._ended()

    def _ended(self) -> int:
        return int(json.loads(self.forks.recv(100)))


@dataclass(frozen=True)
class Watched:
    """A process, the lines of its standard error, and the file that has what it printed."""

    process: Forked
    lines: IO[str]
    out: IO[bytes]

    def printed(self) -> str:
        """What it printed so far."""
        return written(self.out).decode()


def written(file: IO[bytes]) -> bytes:
    """What is in a file that others write to by our descriptor."""
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0)


def fork_warm(
    arguments: list[str],
    folder: Path,
    environment: dict[str, str],
    out: IO[Any],
    err: IO[Any],
    program: str | None = None,
) -> Forked:
    """Begin a program of ours in a session of its own; wait for it before you begin another.

    Args:
      program: a file of Python; `jali` if left out.
    """
    asked = {"program": program, "arguments": arguments, "folder": str(folder), "environment": environment}
    forks = forking_process()
    socket.send_fds(forks, [json.dumps(asked).encode()], [out.fileno(), err.fileno()])
    return Forked(json.loads(forks.recv(100)), forks)


def run_warm(
    arguments: list[str], folder: Path, environment: dict[str, str], timeout: float, program: str | None = None
) -> subprocess.CompletedProcess[bytes]:
    """What `subprocess.run` would return of a program of ours, with nothing on its standard input.

    Raises:
      TimeoutError: it took longer than `timeout` seconds, and was killed.
    """
    with TemporaryFile() as out, TemporaryFile() as err:
        code = fork_warm(arguments, folder, environment, out, err, program).wait(timeout)
        said = [written(file) for file in (out, err)]
    return subprocess.CompletedProcess([program or "jali", *arguments], code, *said)


@contextmanager
def watched_warm(
    arguments: list[str], folder: Path, environment: dict[str, str], program: str | None = None
) -> Iterator[Watched]:
    """The same, told line by line while it runs; it is killed if the block ends before it does."""
    reads, writes = os.pipe()
    with open(reads, encoding="utf-8") as lines, TemporaryFile() as out:  # noqa: PTH123 - a descriptor
        with open(writes, "wb") as err:  # noqa: PTH123 - likewise
            watched = Watched(fork_warm(arguments, folder, environment, out, err, program), lines, out)
        try:
            yield watched
        finally:
            watched.process.kill()


@cache
def forking_process() -> socket.socket:
    """Start it; it ends when we do."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.warm", str(its.fileno())],
        cwd=Path(__file__).parents[1],
        env={**os.environ, **READ_ON_IMPORT},
        stdin=subprocess.DEVNULL,
        pass_fds=[its.fileno()],
    )
    its.close()

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def command_of(requests: socket.socket) -> dict[str, Any] | None:
    """Fork for every request; returns in each child what it is to do, and in the parent nothing when all is over."""
    while True:
        asked, (*descriptors,), *_ = socket.recv_fds(requests, 1 << 20, 2)
        if not asked:
            return None
        child = os.fork()
        if child == 0:
            requests.close()
            os.setsid()
            for at, descriptor in enumerate(descriptors, start=1):
                os.dup2(descriptor, at)
                os.close(descriptor)
            told: dict[str, Any] = json.loads(asked)
            return told
        for descriptor in descriptors:
            os.close(descriptor)
        requests.sendall(json.dumps(child).encode())
        _, status = os.waitpid(child, 0)
        requests.sendall(json.dumps(os.waitstatus_to_exitcode(status)).encode())


if __name__ == "__main__":
    for library in LIBRARIES:
        importlib.import_module(library)
    gc.freeze()  # no child need look through them for garbage
    command = command_of(socket.socket(fileno=int(sys.argv[1])))
    if command is None:
        sys.exit()
    os.chdir(command["folder"])
    os.environ.clear()
    os.environ.update(command["environment"])
    sys.argv = [command["program"] or "jali", *command["arguments"]]
    tempfile.tempdir = None  # there may be another TMPDIR
    if command["program"]:
        runpy.run_path(command["program"], run_name="__main__")
    else:
        from flows.cli import main

        main()
