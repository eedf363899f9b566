"""What `jali ui` says: where both user interfaces answer, and MLflow's pages with what matters selected."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress

import typer

from flows.terminal import login_line
from tasks.pages import SourcePages, pages_of
from tasks.servers import user_interfaces
from tasks.state import State


def open_interfaces(state: State, source: str | None) -> None:
    """Start the servers, say the addresses, and stop them at Ctrl-C."""
    typer.echo("Starting the servers ...")
    with user_interfaces(state) as (addresses, wait):
        found = pages_of(state, source)  # while they boot
        wait()
        for name, address in addresses.items():
            typer.echo(f"{name:8}{address}")
        if "PREFECT_API_URL" not in os.environ:
            typer.echo(login_line(state))
        for line in lines_about(found, addresses["MLflow"]):
            typer.echo(line)
        typer.echo("Press Ctrl-C to stop them.")
        with suppress(KeyboardInterrupt):
            signal.pause()
        typer.echo("Stopping them ...")


def lines_about(found: SourcePages | None, server: str) -> Iterator[str]:
    """MLflow's pages of a source, a line each."""
    if found is None:
        yield "Nothing was run here yet: `jali run` does that."
    elif server.startswith("http"):  # a database has no pages
        yield f"{found.source} in MLflow:"
        yield from (f"  {label:10}{server.rstrip('/')}/{page}" for label, page in found.pages.items())
        if found.others:
            yield f"There is also {', '.join(found.others)}: name one with --source."
