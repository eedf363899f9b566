"""Servers that people look at: is Prefect's there, and starting both UIs on free ports."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from models.errors import EnvironmentFault
from tasks.state import State

START_SECONDS = 90


def require_prefect() -> None:
    """Check that the Prefect server answers, where one is configured.

    Raises:
      EnvironmentFault: PREFECT_API_URL is set and nothing answers there.
    """
    url = os.environ.get("PREFECT_API_URL")
    if url and not _answers(f"{url.rstrip('/')}/health"):
        raise EnvironmentFault(
            f"the Prefect server does not answer at {url}. Start it, or unset PREFECT_API_URL to let Jali run its own."
        )


@contextmanager
def user_interfaces(state: State) -> Iterator[dict[str, str]]:
    """Start what is not configured elsewhere; yields the addresses, stops what it started at the end."""
    with ExitStack() as stack:
        addresses = {}
        if state.tracks_locally:
            port = _free_port()
            command = ["mlflow", "server", "--backend-store-uri", state.tracking_uri]
            command += ["--default-artifact-root", state.artifacts.as_uri(), "--host", "127.0.0.1", "--port", str(port)]
            addresses["MLflow"] = stack.enter_context(_server(command, port, "/health", state, {}))
        else:
            addresses["MLflow"] = state.tracking_uri
        if "PREFECT_API_URL" not in os.environ:
            port = _free_port()
            command = ["prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
            settings = {"PREFECT_SERVER_UI_API_URL": f"http://127.0.0.1:{port}/api"}
            addresses["Prefect"] = stack.enter_context(_server(command, port, "/api/health", state, settings))
        else:
            addresses["Prefect"] = os.environ["PREFECT_API_URL"].removesuffix("/api")
        yield addresses


@contextmanager
def _server(command: list[str], port: int, path: str, state: State, settings: dict[str, str]) -> Iterator[str]:
    """Run a server until the block ends; yields its address once it answers. Its output goes to a log file."""
    program, *arguments = command
    log = state.folder / f"{program}-server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - our own two programs, by absolute path
            [str(Path(sys.executable).with_name(program)), *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **settings},
            start_new_session=True,  # Ctrl-C is for us, who then stop it in order
        )
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + START_SECONDS
        while not _answers(address + path):
            if process.poll() is not None or time.monotonic() > deadline:
                raise EnvironmentFault(f"the {program} server did not start; its output is in {log}.")
            time.sleep(0.2)
        yield address
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=5):  # noqa: S310 - an address of the user's own configuration
            return True
    except (URLError, OSError, ValueError):
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
