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
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

LIBRARIES = (
    "alembic.migration", "dp_accounting.rdp", "fastapi", "git", "google.protobuf.json_format", "great_expectations",
    "httpx", "matplotlib.figure", "numba", "opentelemetry.sdk.trace", "pandas", "pyarrow.csv", "pyarrow.parquet",
    "rich.progress", "scipy.special", "sqlalchemy.orm", "sqlalchemy.dialects.postgresql.asyncpg", "websockets", "yaml",
)  # fmt: skip
READ_ON_IMPORT = {"GX_ANALYTICS_ENABLED": "false", "GIT_PYTHON_REFRESH": "quiet", "OPENBLAS_NUM_THREADS": "1"}
"""Of the settings that tasks/state.py makes, those of these libraries."""


def run_warm(
    arguments: list[str], folder: Path, environment: dict[str, str], timeout: float, program: str | None = None
) -> subprocess.CompletedProcess[bytes]:
    """What `subprocess.run` would return of a program of ours, with nothing on its standard input.

    Args:
      program: a file of Python; `jali` if left out.

    Raises:
      TimeoutError: it took longer than `timeout` seconds, and was killed.
    """
    asked = {"program": program, "arguments": arguments, "folder": str(folder), "environment": environment}
    with TemporaryFile() as out, TemporaryFile() as err:
        forks = forking_process()
        socket.send_fds(forks, [json.dumps(asked).encode()], [out.fileno(), err.fileno()])
        process = json.loads(forks.recv(100))
        forks.settimeout(timeout)
        try:
            code = json.loads(forks.recv(100))
        except TimeoutError:
            os.kill(process, signal.SIGKILL)
            forks.settimeout(None)
            forks.recv(100)
            raise
        forks.settimeout(None)
        said = [os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0) for file in (out, err)]
    return subprocess.CompletedProcess([program or "jali", *arguments], code, *said)


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
