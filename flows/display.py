"""What the terminal shows while a job runs: a live line where there is a screen, plain lines in a pipe."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from tasks.progress import Listener, listening


@contextmanager
def displayed(console: Console) -> Iterator[None]:
    """Show the stages on `console` until the block ends."""
    if console.is_terminal:
        columns = (
            SpinnerColumn(finished_text="[green]✓[/]"),
            TextColumn("{task.description}", justify="left"),
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TextColumn("{task.fields[took]}"),
            TimeRemainingColumn(compact=True),
        )
        with Progress(*columns, console=console) as progress:
            live = _Live(progress)
            with listening(live):
                yield
            live.finish()
    else:
        with listening(_Plain(console)):
            yield


class _Live(Listener):
    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._current: TaskID | None = None
        self._began = 0.0

    def finish(self) -> None:
        """Tick off the stage under way: the next has begun, or all is done."""
        if self._current is not None:
            total = self._progress.tasks[self._current].total
            self._progress.update(self._current, completed=total, took=f"{perf_counter() - self._began:.1f} s")

    def stage(self, text: str, steps: int = 1) -> None:
        self.finish()
        self._began = perf_counter()
        self._current = self._progress.add_task(text, total=steps, took="")

    def step(self) -> None:
        if self._current is not None:
            self._progress.advance(self._current)


class _Plain(Listener):
    """One line a stage, and one each time another quarter of a long stage is done."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = perf_counter()
        self._text, self._steps, self._done = "", 1, 0

    def stage(self, text: str, steps: int = 1) -> None:
        self._text, self._steps, self._done = text, steps, 0
        self._line(text)

    def step(self) -> None:
        self._done += 1
        quarter_before, quarter = (4 * done // self._steps for done in (self._done - 1, self._done))
        if self._steps >= 4 and quarter > quarter_before:
            self._line(f"{self._text}: {self._done} of {self._steps}")

    def _line(self, text: str) -> None:
        self._console.print(f"{perf_counter() - self._began:6.1f} s  {text}", highlight=False)
