"""Hears what the watcher of the registry says, and starts it again where it ends."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from serving.service import Service
    from serving.words import Word

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
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
        Thread(target=self._keep_hearing, args=(service,), daemon=True, name="follow").start()

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

    def _keep_hearing(self, service: Service) -> None:
        """Until the end, whatever fails: without this thread the server would serve what it has for ever."""
        from serving.words import Word  # late: the watcher is to start before pydantic is imported

        pause = FIRST_PAUSE
        while True:
            try:
                for word in self._words():
                    pause = FIRST_PAUSE
                    service.hear(word)
                problem = f"the watcher of the registry ended ({self._watcher.wait()}); it is started again."
            except Exception as error:  # too little memory, say
                problem = f"the watcher of the registry cannot be heard ({type(error).__name__}); it is tried again."
            if self._ending:
                _close(self._watcher)
                return
            with suppress(Exception):
                service.hear(Word(in_touch=False, problem=problem))
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            with suppress(Exception):  # no process is to be had now; the dead one is found dead again, and told of
                if self._watcher.poll() is not None:
                    dead, self._watcher = self._watcher, self._start()
                    _close(dead)

    def _words(self) -> Iterator[Word]:
        """Of the watcher that runs, until it ends."""
        from pydantic import ValidationError

        from serving.words import Word

        assert self._watcher.stdout is not None
        for line in self._watcher.stdout:
            with suppress(ValidationError):  # cut off, as the watcher was killed
                yield Word.model_validate_json(line)


def _close(watcher: subprocess.Popen[bytes]) -> None:
    for pipe in (watcher.stdin, watcher.stdout):
        assert pipe is not None
        with suppress(OSError):
            pipe.close()
