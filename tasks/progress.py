"""How far a run is, and whether it should go on: stages tell, whoever displays listens.

An interrupt is remembered and raised again at the next step, because Python may lose a KeyboardInterrupt:
one that arrives in a destructor is printed and forgotten, and the run would go on to pay and publish.
Nothing here touches the screen.
"""

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
_interrupted = False


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
    """Begin a stage of so many steps."""
    go_on()
    _listener.stage(text, steps)


def step() -> None:
    """One more step of the stage is done."""
    go_on()
    _listener.step()


def interrupt() -> None:
    """Remember that somebody pressed Ctrl-C."""
    global _interrupted
    _interrupted = True


def is_interrupted() -> bool:
    return _interrupted


def go_on() -> None:
    """Raise KeyboardInterrupt if one was asked for; called before anything that cannot be undone."""
    if _interrupted:
        raise KeyboardInterrupt
