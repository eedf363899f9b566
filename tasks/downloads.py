"""Files from the web, streamed to the disk."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from time import monotonic

import httpx

from models.errors import EnvironmentFault, JaliError, SpecError

logging.getLogger("httpx").setLevel(logging.WARNING)  # at INFO it writes down addresses, with passwords in them

ANSWER_SECONDS, SILENCE_SECONDS, MOST_SECONDS = 10, 30, 3600


def download(url: str, target: Path, *, shown: str) -> None:
    """Write what is at `url` to the new file `target`, readable by its owner alone; bytes as the server has them.

    Args:
      shown: what sentences call it; `url` may hold a password and is never quoted.

    Raises:
      SpecError: there is no such file.
      EnvironmentFault: no answer, a refusal, an answer that breaks off, or a disk that cannot be written.
    """
    try:
        _stream(url, target, shown)
        return
    except JaliError:
        raise
    except httpx.HTTPError:
        fault = (
            f"{shown} cannot be fetched: the server does not answer, or breaks off. Check the address and the network."
        )
    except (httpx.InvalidURL, UnicodeError):
        fault = f"{shown} cannot be fetched: its address is none. Check it, and the variables it names."
    except OSError as error:
        fault = f"{shown} cannot be written to {target.parent} ({error.strerror})."
    raise EnvironmentFault(fault)  # outside the handlers: the library's own text quotes the address


def _stream(url: str, target: Path, shown: str) -> None:
    deadline = monotonic() + MOST_SECONDS
    timeout = httpx.Timeout(SILENCE_SECONDS, connect=ANSWER_SECONDS)
    headers = {"Accept-Encoding": "identity"}
    with httpx.stream("GET", url, follow_redirects=True, timeout=timeout, headers=headers) as answer:
        if answer.status_code in (404, 410):
            raise SpecError(f"{shown} does not exist: the server answers {answer.status_code}. Check the address.")
        if not answer.is_success:
            raise EnvironmentFault(
                f"{shown} cannot be fetched: the server answers {answer.status_code}. Check the address, and whether "
                "it asks for a login."
            )
        with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            for piece in answer.iter_raw():
                file.write(piece)
                if monotonic() > deadline:
                    raise EnvironmentFault(f"{shown} was not here after {MOST_SECONDS} s; fetching it was given up.")
