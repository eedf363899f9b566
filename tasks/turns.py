"""One run at a time on the data of one source, whoever starts it: the schedule, a person, another schedule."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from models.errors import AnotherRun, EnvironmentFault
from tasks.state import current_state


@contextmanager
def one_at_a_time(source: str) -> Iterator[None]:
    """Hold the source: two batches at once would release, and charge, the same ratings twice.

    Raises:
      AnotherRun: another process holds it.
      EnvironmentFault: the state folder cannot be written.
    """
    folder = current_state().folder / "turns"
    try:
        folder.mkdir(exist_ok=True)
        lock = os.open(folder / source, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise EnvironmentFault(f"{folder} cannot be written ({error.strerror}).") from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AnotherRun(
                f"another run of {source} is under way, and two at once could release the same ratings. Nothing was "
                "charged. Run again when it is done."
            ) from None
        yield
    finally:
        os.close(lock)  # and with it the lock, however this process ends
