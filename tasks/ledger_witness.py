"""Which ledger keeps the budget of which source, remembered outside the working folder.

A ledger that was removed or renamed, or another working folder, starts from nothing, and a budget with it. So this
account's own folder holds a small file for every source with a budget: which ledger it is, and its newest row then.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from models.errors import LedgerDoubted, shown
from tasks.durable import write_whole
from tasks.ledger_book import Head, Page
from tasks.state import State, without_credentials


def remember(state: State, source: str, head: Head, url: str) -> bool:
    """Note the newest row, unless a newer one is noted; False where this account has no folder to write to."""
    file = _file(state, source)
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _one_writer(state):
            if not _is_noted_newer(file, head):
                note = {"ledger": head.ledger, "seq": head.seq, "seal": head.seal, "at": without_credentials(url)}
                write_whole(file, json.dumps(note).encode())
    except OSError:
        return False
    return True


@contextmanager
def _one_writer(state: State) -> Iterator[None]:
    """Commits of several processes may come here in another order than into the ledger."""
    lock = os.open(state.own_folder / "budgets.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _is_noted_newer(file: Path, head: Head) -> bool:
    try:
        known, _ = _noted(file)
    except (FileNotFoundError, *_DAMAGED):
        return False
    return known.ledger == head.ledger and known.seq > head.seq


_DAMAGED = (ValueError, KeyError, TypeError)


def _noted(file: Path) -> tuple[Head, str]:
    """The newest row and where its ledger is. Raises OSError or one of _DAMAGED."""
    known = json.loads(file.read_text())
    return Head(str(known["ledger"]), int(known["seq"]), str(known["seal"])), str(known["at"])


def require_remembered(state: State, source: str, page: Page, url: str) -> None:
    """Raise LedgerDoubted where another ledger, or a longer version of this one, keeps the source's budget."""
    file = _file(state, source)
    try:
        head, where = _noted(file)
    except FileNotFoundError:
        return
    except (OSError, *_DAMAGED):
        raise LedgerDoubted(
            f"{shown(file)}, where it is remembered which ledger keeps the budget of {shown(source)}, cannot be read. "
            "Look after it; remove it only if this ledger is the one."
        ) from None
    seals = {row["seq"]: row["seal"] for row in page.rows}
    if (head.ledger, head.seal) != (page.head.ledger, seals.get(head.seq)):
        raise LedgerDoubted(
            f"{shown(source)} has a budget, kept in the ledger at {shown(where)}, and this ledger "
            f"({shown(without_credentials(url))}) is another one or has lost rows since: what was spent is not in it. "
            "Use that one (JALI_LEDGER_URL), restore it from a backup, or, if these are other ratings, give them "
            f"another name with --source. (Remembered in {shown(file)}.)"
        )


def is_remembered(state: State, source: str) -> bool:
    """Whether this account knows of a budget of the source."""
    return _file(state, source).exists()


def _file(state: State, source: str) -> Path:
    return state.own_folder / "budgets" / f"{quote(source, safe=' ')}.json"
