"""The private list of what batches released: `.jali/batches/SOURCE/RESERVATION.moves`, one file per batch.

A file says what the batch moved: keyed hashes of user and item, level, weight. It is on the disk before the batch is
paid for, and counts once the ledger says so: a crash between the two leaves the ratings as new as they were. A list
that lacks the file of a batch that was paid for is refused, for its ratings would be released, and would pay, a second
time.
"""

from __future__ import annotations

import hmac
from pathlib import Path
from typing import Any

import numpy as np

from models.batch import Moves, Record
from models.errors import Refused
from models.privacy.keyed_hash import label_hashes
from models.ratings import Ratings
from tasks.durable import write_whole
from tasks.ledger import Ledger, Reservation
from tasks.ledger_entries import SPENT
from tasks.ledger_entries import State as ChargeState
from tasks.private_key import private_key
from tasks.state import State, current_state

SEAL_BYTES = 32
ROW = np.dtype([("user", "<u8"), ("item", "<u8"), ("level", "<i2"), ("steps", "<i4")])
KEPT_OUT = "kept-out"
"""The file of those who asked to be in no batch: their hashes, under a seal."""

LEFT = -1
"""The level in the row of a user who has withdrawn."""


def series_of(recommender: str) -> str:
    """What the ledger calls the batches of one source: each rating is in one of them."""
    return f"{recommender} batches"


def keep_moves(reservation: Reservation, ratings: Ratings, moves: Moves) -> None:
    """Put what a batch is about to move on the list: on the disk when this returns, and before it is paid for."""
    state = current_state()
    key = list_key(state)
    users = label_hashes(key, "user", ratings.user_labels)
    items = label_hashes(key, "item", ratings.catalogue.items)
    rows = np.empty(len(moves.steps), ROW)
    rows["user"], rows["item"] = users[moves.users], items[moves.items]
    rows["level"], rows["steps"] = moves.levels, moves.steps
    if ratings.batch is not None and ratings.batch.kind == "withdrawal":
        rows = np.append(rows, np.array([(user, 0, LEFT, 0) for user in users], ROW))
    content = rows.tobytes()
    _write(_file(state, reservation.source, reservation.id), _seal(key, reservation.id, content) + content)


def require_whole(source: str, recommender: str) -> None:
    """Raise Refused if the ledger has a batch that this list lacks, as after one of another machine's just now."""
    state = current_state()
    for reservation in batches_of(state, source, recommender):
        _require_file(state, source, reservation)


def read_record(state: State, source: str, recommender: str) -> Record:
    """What all batches moved that were paid for.

    Raises:
      Refused: a file is missing or not as it was written, or a batch that was paid for is not out yet.
    """
    key, parts, published = list_key(state), [np.empty(0, ROW)], [np.zeros(0, np.bool_)]
    for reservation, stands in batches_of(state, source, recommender).items():
        if stands == "commit":
            raise Refused(
                f"a batch of {source} was paid for and its release is not published yet. Run again once it is, or, if "
                f"nothing of it can have left, `jali ledger void {reservation[:8]} --reason ...`."
            )
        parts.append(_sealed(key, reservation, _require_file(state, source, reservation), ROW))
        published.append(np.full(len(parts[-1]), stands == "publish"))
    rows, is_published = np.concatenate(parts), np.concatenate(published)
    has_left = rows["level"] == LEFT
    moved, out = rows[~has_left], rows["user"][has_left]
    levels, steps = (moved[name].astype(np.int64) for name in ("level", "steps"))
    left = np.union1d(out, _kept_out(state, source))
    return Record(
        moved["user"], moved["item"], levels, steps, is_published[~has_left], left, out, is_published[has_left]
    )


def keep_out(source: str, user: str) -> None:
    """Let no later batch take in ratings of this user; costs nothing, and does not depend on any rating."""
    state = current_state()
    users = np.union1d(_kept_out(state, source), label_hashes(list_key(state), "user", [user]))
    content = users.astype("<u8").tobytes()
    _write(_folder(state, source) / KEPT_OUT, _seal(list_key(state), KEPT_OUT, content) + content)


def somebody_is_kept_out(state: State, source: str) -> bool:
    """Whether people have asked to be left out of the batches of this source."""
    return (_folder(state, source) / KEPT_OUT).exists()


def _kept_out(state: State, source: str) -> np.ndarray:
    file = _folder(state, source) / KEPT_OUT
    return _sealed(list_key(state), KEPT_OUT, file, np.dtype("<u8")) if file.exists() else np.empty(0, "<u8")


def recommenders_with_batches(ledger: Ledger, source: str) -> list[str]:
    """Whose batches of a source were published, by name."""
    entries = [entry for entry in ledger.entries(source) if entry.series and entry.state == "publish"]
    return sorted({entry.recommender for entry in entries if entry.series == series_of(entry.recommender)})


def batches_of(state: State, source: str, recommender: str) -> dict[str, ChargeState]:
    """Reservations of batches and withdrawals that count as spent, oldest change first, and how each stands."""
    return {
        entry.reservation: entry.state
        for entry in Ledger(state).entries(source)
        if entry.recommender == recommender
        and entry.state in SPENT
        and (entry.series == series_of(recommender) or entry.purpose in ("corrections", "withdrawal"))
    }


def list_key(state: State) -> bytes:
    """Of the hashes on the list, and of its seals."""
    return private_key(
        state.folder / "batches.key",
        "the list of what was released, .jali/batches, says nothing without it. Restore both from a backup",
    )


def _folder(state: State, source: str) -> Path:
    return state.folder / "batches" / source


def _file(state: State, source: str, reservation: str) -> Path:
    return _folder(state, source) / f"{reservation}.moves"


def _write(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, content)


def _require_file(state: State, source: str, reservation: str) -> Path:
    file = _file(state, source, reservation)
    if not file.exists():
        raise Refused(
            f"the ledger has a batch of {source} that the private list of what was released lacks "
            f"({_folder(state, source)}): its ratings would be released, and would pay, a second time. Restore the "
            "list from a backup, or run where it is."
        )
    return file


def _sealed(key: bytes, name: str, file: Path, kind: np.dtype[Any]) -> np.ndarray:
    raw = file.read_bytes()
    seal, content = raw[:SEAL_BYTES], raw[SEAL_BYTES:]
    if not hmac.compare_digest(seal, _seal(key, name, content)):
        raise Refused(
            f"{file} is not as it was written, or {file.parents[1]}.key is not the key it was written with. Restore "
            "both from a backup."
        )
    return np.frombuffer(content, kind)


def _seal(key: bytes, reservation: str, content: bytes) -> bytes:
    return hmac.digest(key, reservation.encode() + content, "sha256")
