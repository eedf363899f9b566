"""`jali serve`: the web server here, the watcher of the registry beside it. No Prefect: it need not run for this."""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import typer

from flows.names import require_source_name
from models.errors import EnvironmentFault, JaliError, Refused, SpecError, quoted, shown
from serving.follow import Follower
from serving.listening import listening_socket
from tasks.watcher import start_watcher

ERRORS: dict[int, type[JaliError]] = {1: Refused, 2: SpecError, 3: EnvironmentFault}

SWITCH_SECONDS = 0.0005
"""After which a large request, or a release being loaded, lets others be answered; Python's own is ten times that."""


@dataclass(frozen=True)
class Serving:
    """What to serve, where, and to which sites' pages besides."""

    source: str | None
    host: str
    port: int
    origins: tuple[str, ...]


def serving_of(source: str | None, host: str, port: str, origins: list[str]) -> Serving:
    """What was typed, checked.

    Raises:
      SpecError: something is no name of a source, no port or no origin.
    """
    for origin in origins:
        if origin != "*" and not re.fullmatch(r"https?://[^/\s]+", origin):
            raise SpecError(
                f"--allow-origin takes an origin such as https://films.example, or *; found {quoted(origin)}."
            )
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) < 1 << 16):
        raise SpecError(f"--port is a whole number from 0 to 65535; found {quoted(port)}.")
    return Serving(require_source_name(source) if source is not None else None, host, int(port), tuple(origins))


def serve(asked: Serving) -> None:
    """Serve the champion until a signal comes; requests in flight are finished.

    Raises:
      SpecError: no such host, or it must be said which source.
      Refused: no version is promoted, or the promoted one cannot be loaded.
      EnvironmentFault: the port is taken, or MLflow does not answer and nothing is kept from before.
    """
    with _listening(asked.host, asked.port) as listening, _following(asked.source) as follower:
        from serving.app import make_app  # while the watcher imports MLflow
        from serving.server import make_server
        from serving.service import Service

        if not os.environ.get("JALI_DEBUG"):
            logging.disable(logging.CRITICAL)  # a library's line could quote a request
        service = Service(tell=_tell, stop=lambda: setattr(server, "should_exit", True))
        server = make_server(make_app(service, asked.origins))
        sys.setswitchinterval(SWITCH_SECONDS)
        _tell(f"{_address(listening)} answers as soon as a release is loaded. Press Ctrl-C to stop.")
        follower.follow(service)
        server.run(sockets=[listening])
        if service.ended is not None:
            raise ERRORS[service.ended.refusal or 3](service.ended.problem)
        _tell("Stopped.")


@contextmanager
def _following(source: str | None) -> Iterator[Follower]:
    follower = Follower(lambda: start_watcher(source))
    try:
        yield follower
    finally:
        follower.end()


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    try:
        listening = listening_socket(host, port)
    except socket.gaierror:
        raise SpecError(f"--host is an address of this machine; found {quoted(host)}.") from None
    except OSError as error:
        raise EnvironmentFault(
            f"cannot listen at port {port} of {shown(host)} ({error.strerror}). Stop what listens there, or take "
            "another with --port."
        ) from None
    with listening:
        yield listening


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _tell(line: str) -> None:
    with suppress(OSError):  # nobody reads on, and requests are answered all the same
        typer.echo(line, err=line.startswith("jali: "))
