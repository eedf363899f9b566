"""How far a run is: stages tell, whoever displays listens. Nothing here touches the screen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Listener(Protocol):
    def stage(self, text: str, steps: int = 1) -> None:
        """A new stage of so many steps begins."""

    def step(self) -> None:
        """One more step of the stage is done."""


class _Nobody:
    def stage(self, text: str, steps: int = 1) -> None:
        pass

    def step(self) -> None:
        pass


_listener: Listener = _Nobody()


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Send what the stages tell to `listener`; a process runs one job at a time."""
    global _listener
    before, _listener = _listener, listener
    try:
        yield
    finally:
        _listener = before


def stage(text: str, steps: int = 1) -> None:
    _listener.stage(text, steps)


def step() -> None:
    _listener.step()
