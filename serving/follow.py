"""Hears what the watcher of the registry says, and starts it again where it ends."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from serving.service import Service

LONGEST_PAUSE = 30.0
END_SECONDS = 5


class Follower:
    """Keeps a watcher running from when it is made.

    Args:
      start: starts a process that writes words to its standard output and ends when its standard input does.
    """

    def __init__(self, start: Callable[[], subprocess.Popen[bytes]]) -> None:
        self._start = start
        self._watcher = start()
        self._ending = False

    def follow(self, service: Service) -> None:
        """Let the service hear the words, from now on and in a thread of their own."""
        Thread(target=self._hear, args=(service,), daemon=True, name="follow").start()

    def end(self) -> None:
        self._ending = True
        assert self._watcher.stdin is not None
        with suppress(OSError):
            self._watcher.stdin.close()
        try:
            self._watcher.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._watcher.kill()
            self._watcher.wait()

    def _hear(self, service: Service) -> None:
        from pydantic import ValidationError  # late: the watcher is to start before this is imported

        from serving.words import Word

        pause = 1.0
        while True:
            assert self._watcher.stdout is not None
            for line in self._watcher.stdout:
                with suppress(ValidationError):  # cut off, as the watcher was killed
                    service.hear(Word.model_validate_json(line))
                    pause = 1.0
            code = self._watcher.wait()
            if self._ending:
                return
            service.hear(
                Word(in_touch=False, problem=f"the watcher of the registry ended ({code}); it is started again.")
            )
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            self._watcher = self._start()
