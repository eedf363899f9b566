"""Servers: one of Prefect's for a run that has none, and both UIs for people to look at."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import IO
from urllib.error import URLError
from urllib.request import urlopen

from models.errors import EnvironmentFault
from tasks.prefect_access import address_asked, password
from tasks.state import State, without_credentials

START_SECONDS, STOP_SECONDS = 90, 10

# A server must end when we do, however we end, with all that it started, and must not hear the Ctrl-C that
# is for us: it runs in a session of its own, under a shell that ends the whole when the pipe from us closes, and
# kills what has not ended ten seconds later.
TIED_TO_A_PIPE = """
trap : TERM
exec 3<&0
"$@" </dev/null 3<&- & server=$!
(
trap '' TERM
read _ <&3
kill 0
waited=0
while [ $waited -lt 100 ] && kill -0 $server 2>/dev/null; do sleep .1; waited=$((waited + 1)); done
kill -KILL 0
) &
while kill -0 $server 2>/dev/null; do wait $server; done
"""


@contextmanager
def prefect_server(state: State) -> Iterator[Callable[[], None]]:
    """A Prefect server for a run; yields a function that waits until it answers.

    With PREFECT_API_URL set, that one; otherwise that of the `jali schedule` which is at work in this folder, for two
    on one SQLite database lock each other out; otherwise one of our own, which boots while the caller goes on and is
    stopped at the end. Enter before Prefect is imported: it reads its address then.

    Raises:
      EnvironmentFault: (the function) the server does not answer.
    """
    url = os.environ.get("PREFECT_API_URL")
    if url:

        def require() -> None:
            if not _answers(f"{url.rstrip('/')}/health"):
                raise EnvironmentFault(
                    f"the Prefect server does not answer at {without_credentials(url)}. "
                    "Start it, or unset PREFECT_API_URL to let Jali run its own."
                )

        yield require
        return
    if shared := address_of_schedules(state):
        with _asking(shared, state):
            yield lambda: None
        return
    port = _free_port()
    with _asking(f"http://127.0.0.1:{port}/api", state), _own_prefect(port, state) as wait:
        yield wait


@contextmanager
def user_interfaces(state: State) -> Iterator[tuple[dict[str, str], Callable[[], None]]]:
    """Start what is not configured elsewhere; yields the addresses, and a function that waits until all answer.

    What was started is stopped at the end.
    """
    addresses, waits = {}, []
    with ExitStack() as stack:
        if state.tracks_locally:
            port = _free_port()
            command = ["mlflow", "server", "--backend-store-uri", state.tracking_uri]
            command += ["--default-artifact-root", state.artifacts.as_uri(), "--host", "127.0.0.1", "--port", str(port)]
            command += ["--workers", "1"]  # whoever looks is alone, and each of the usual four imports all of MLflow
            settings = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # a dozen workers for jobs we never give it
            waits.append(stack.enter_context(_server(command, port, "/health", state, settings)))
            addresses["MLflow"] = f"http://127.0.0.1:{port}"
        else:
            addresses["MLflow"] = without_credentials(state.tracking_uri)
        if "PREFECT_API_URL" not in os.environ and (shared := address_of_schedules(state)):
            addresses["Prefect"] = shared.removesuffix("/api")
        elif "PREFECT_API_URL" not in os.environ:
            port = _free_port()
            waits.append(stack.enter_context(_own_prefect(port, state)))
            addresses["Prefect"] = f"http://127.0.0.1:{port}"
        else:
            addresses["Prefect"] = address_asked().removesuffix("/api")

        def wait_for_all() -> None:
            for wait in waits:
                wait()

        yield addresses, wait_for_all


@contextmanager
def schedule_server(state: State) -> Iterator[tuple[Callable[[], None], bool]]:
    """The Prefect server that keeps the schedules; yields a function that waits until it answers, and whether it is
    ours: started here, with its UI, and found by every other `jali schedule` of this folder until the block ends.

    Enter before Prefect is imported.

    Raises:
      EnvironmentFault: (the function) the server does not answer.
    """
    with ExitStack() as stack:
        if "PREFECT_API_URL" not in os.environ:
            found = stack.enter_context(_announced(state))
            if isinstance(found, str):
                stack.enter_context(_asking(found, state))
            else:
                url = f"http://127.0.0.1:{(port := _free_port())}/api"
                stack.enter_context(_asking(url, state))
                wait = stack.enter_context(_own_prefect(port, state))

                def announce() -> None:
                    wait()
                    found.write(url)
                    found.flush()

                yield announce, True
                return
        yield stack.enter_context(prefect_server(state)), False


def address_of_schedules(state: State) -> str | None:
    """Of the server that a `jali schedule` keeps in this folder just now; None where there is none, or it starts."""
    try:
        with _announcement(state).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        pass
    except BlockingIOError:
        with _announcement(state).open() as file:
            return _answering_address(file)
    return None


def _answering_address(file: IO[str]) -> str | None:
    """What is announced; None while that server starts, and of one that is gone."""
    file.seek(0)
    address = file.read()
    return address if address and _answers(f"{address}/health") else None


def _announcement(state: State) -> Path:
    return state.folder / "schedule-server"


@contextmanager
def _announced(state: State) -> Iterator[str | IO[str]]:
    """The address of the schedules' server of this folder, where a process that is alive has written it; otherwise a
    file to write it into, held until the block ends.
    """
    with _announcement(state).open("a+") as file:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if address := _answering_address(file):
                    yield address
                    return
                time.sleep(0.1)
            else:
                file.truncate(0)
                try:
                    yield file
                finally:
                    file.truncate(0)
                return
        raise EnvironmentFault("another `jali schedule` of this folder does not get on. Stop it, and try again.")


@contextmanager
def schedule_worker(state: State, pool: str) -> Iterator[Callable[[], bool]]:
    """A worker for the runs of a work pool, until the block ends; yields whether it is still there."""
    settings = {"PREFECT_WORKER_QUERY_SECONDS": "1", "PREFECT_WORKER_PREFETCH_SECONDS": "1"}
    command = ["prefect", "worker", "start", "--pool", pool, "--type", "process"]
    with _tied(command, state.folder / "prefect-worker.log", settings) as process:
        yield lambda: process.poll() is None


@contextmanager
def _asking(url: str, state: State) -> Iterator[None]:
    """Until the block ends, Prefect's clients, here and in what we start, ask the server of this folder at `url`."""
    ours = {"PREFECT_API_URL": url, "PREFECT_API_AUTH_STRING": password(state)}
    before = {name: os.environ[name] for name in ours if name in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            del os.environ[name]
        os.environ.update(before)


@contextmanager
def _own_prefect(port: int, state: State) -> Iterator[Callable[[], None]]:
    """A Prefect server that answers who has the folder's password, and tells no web page but its own."""
    origin = f"http://127.0.0.1:{port}"
    settings = {
        "PREFECT_SERVER_API_AUTH_STRING": password(state),
        "PREFECT_API_AUTH_STRING": password(state),  # it asks itself too
        "PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS": origin,
        "PREFECT_SERVER_UI_API_URL": f"{origin}/api",
    }
    command = ["prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    with _server(command, port, "/api/health", state, settings) as wait:
        yield wait


@contextmanager
def _server(
    command: list[str], port: int, path: str, state: State, settings: dict[str, str] | None = None
) -> Iterator[Callable[[], None]]:
    """Run a server until the block ends; yields a function that waits until it answers. Its output goes to a file."""
    log = state.folder / f"{command[0]}-server.log"
    with _tied(command, log, settings) as process:

        def wait() -> None:
            deadline = time.monotonic() + START_SECONDS
            while not _answers(f"http://127.0.0.1:{port}{path}"):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise EnvironmentFault(f"the {command[0]} server did not start; its output is in {log}.")
                time.sleep(0.1)

        yield wait


@contextmanager
def _tied(command: list[str], log: Path, settings: dict[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program of this environment until the block ends, or we do; its output goes to a file."""
    program, *arguments = command
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - our own programs, by absolute path
            ["/bin/sh", "-c", TIED_TO_A_PIPE, "sh", str(Path(sys.executable).with_name(program)), *arguments],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(settings or {})},
            start_new_session=True,
        )
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=5):  # noqa: S310 - an address of the user's own configuration
            return True
    except (URLError, HTTPException, OSError, ValueError):
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
