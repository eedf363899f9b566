"""Servers: one of Prefect's for a run that has none, and both UIs for people to look at."""

from __future__ import annotations

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
from urllib.error import URLError
from urllib.request import urlopen

from models.errors import EnvironmentFault
from tasks.state import State, without_credentials

START_SECONDS, STOP_SECONDS = 90, 10

# A server must end when we do, however we end, with all that it started, and must not hear the Ctrl-C that
# is for us: it runs in a session of its own, under a shell that ends the whole when the pipe from us closes.
TIED_TO_A_PIPE = """
trap : TERM
exec 3<&0
"$@" </dev/null 3<&- & server=$!
(read _ <&3; kill 0) &
while kill -0 $server 2>/dev/null; do wait $server; done
"""


@contextmanager
def prefect_server(state: State) -> Iterator[Callable[[], None]]:
    """A Prefect server for a run; yields a function that waits until it answers.

    With PREFECT_API_URL set, that one; otherwise one of our own, which boots while the caller goes on
    and is stopped at the end. Enter before Prefect is imported: it reads its address then.

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
    port = _free_port()
    os.environ["PREFECT_API_URL"] = f"http://127.0.0.1:{port}/api"
    try:
        with _server(_prefect_command(port), port, "/api/health", state) as wait:
            yield wait
    finally:
        del os.environ["PREFECT_API_URL"]


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
            settings = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # a dozen workers for jobs we never give it
            waits.append(stack.enter_context(_server(command, port, "/health", state, settings)))
            addresses["MLflow"] = f"http://127.0.0.1:{port}"
        else:
            addresses["MLflow"] = without_credentials(state.tracking_uri)
        if "PREFECT_API_URL" not in os.environ:
            port = _free_port()
            settings = {"PREFECT_SERVER_UI_API_URL": f"http://127.0.0.1:{port}/api"}
            waits.append(stack.enter_context(_server(_prefect_command(port), port, "/api/health", state, settings)))
            addresses["Prefect"] = f"http://127.0.0.1:{port}"
        else:
            addresses["Prefect"] = without_credentials(os.environ["PREFECT_API_URL"]).removesuffix("/api")

        def wait_for_all() -> None:
            for wait in waits:
                wait()

        yield addresses, wait_for_all


def _prefect_command(port: int) -> list[str]:
    return ["prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]


@contextmanager
def _server(
    command: list[str], port: int, path: str, state: State, settings: dict[str, str] | None = None
) -> Iterator[Callable[[], None]]:
    """Run a server until the block ends; yields a function that waits until it answers. Its output goes to a file."""
    program, *arguments = command
    log = state.folder / f"{program}-server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - our own two programs, by absolute path
            ["/bin/sh", "-c", TIED_TO_A_PIPE, "sh", str(Path(sys.executable).with_name(program)), *arguments],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(settings or {})},
            start_new_session=True,
        )

    def wait() -> None:
        deadline = time.monotonic() + START_SECONDS
        while not _answers(f"http://127.0.0.1:{port}{path}"):
            if process.poll() is not None or time.monotonic() > deadline:
                raise EnvironmentFault(f"the {program} server did not start; its output is in {log}.")
            time.sleep(0.1)

    try:
        yield wait
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
