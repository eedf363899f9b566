"""Whether ratings under a new name are those of a source with a budget: a guard against a renamed file.

Of every source that something was released on, this account keeps a sketch of the ratings in its own folder: the smallest of the keyed hashes of (user, item, level). Without the key, which lies beside them, they say
nothing; like the ratings they stay inside. Comparing the smallest hashes of two sets estimates how alike the sets are
(Broder, SEQUENCES 1997).
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from urllib.parse import quote, unquote

import numpy as np

from models.errors import EnvironmentFault, NotReleasable, shown
from models.privacy.keyed_hash import pair_uniforms
from models.ratings import Doubles, Ratings
from tasks.guard import guarded
from tasks.ledger_witness import is_remembered
from tasks.private_key import private_key
from tasks.state import State
from tasks.unstored import unstored_task

SIZE = 1024
ALIKE = 0.5
"""Which share of the ratings of both sets together must be in both for one to be taken for the other."""


@guarded("Comparing the ratings with those that have a budget")
def require_unfamiliar(state: State, source: str, ratings: Ratings) -> None:
    """Raise NotReleasable if these are the ratings of another source, one with a budget."""
    others = [
        file
        for file in _folder(state).glob("*.npy")
        if file != _file(state, source) and is_remembered(state, unquote(file.stem))
    ]
    if not others:
        return
    own = sketch(_key(state), ratings)
    for file in others:
        if likeness(own, _load(file)) >= ALIKE:
            other = shown(unquote(file.stem))
            raise NotReleasable(
                f"these ratings are, for the greater part, those of {other}, which has a budget: another name does not "
                f"make another budget. Nothing was charged and nothing released. Run with --source {other}."
            )


@guarded("Noting which ratings were released")
def note(state: State, source: str, ratings: Ratings) -> None:
    """Keep the sketch of a source, for later runs under other names."""
    _folder(state).mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.NamedTemporaryFile(dir=_folder(state), prefix=".new-", delete=False) as new:
        np.save(new, sketch(_key(state), ratings))
        new.flush()
        os.fsync(new.fileno())
    Path(new.name).replace(_file(state, source))


def sketch(key: bytes, ratings: Ratings) -> Doubles:
    """The SIZE smallest of the ratings' keyed hashes, or all where there are fewer; sorted."""
    levels = ratings.scale.levels
    labels = [f"{item}\0{level:g}" for item in ratings.catalogue.items for level in levels]
    cells = (ratings.items.astype(np.int64) * len(levels) + ratings.scale.level_of(ratings.values)).astype(np.int32)
    hashes = np.unique(pair_uniforms(key.hex(), ratings.user_labels, labels, ratings.users, cells))
    return hashes[:SIZE]


def likeness(one: Doubles, other: Doubles) -> float:
    """The estimated share of what is in either set that is in both; 0 for empty sets."""
    either = np.union1d(one, other)[: max(min(len(one), len(other)), 1)]
    in_both = np.isin(either, one) & np.isin(either, other)
    return float(in_both.mean()) if len(either) else 0.0


def _load(file: Path) -> Doubles:
    try:
        return np.asarray(np.load(file), np.float64)
    except (ValueError, EOFError):
        raise EnvironmentFault(
            f"{file} is damaged. Remove it: the next release under its name makes it anew."
        ) from None


def _key(state: State) -> bytes:
    state.own_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return private_key(state.own_folder / "ratings.key", "remove it, with the folder ratings beside it")


def _folder(state: State) -> Path:
    return state.own_folder / "ratings"


def _file(state: State, source: str) -> Path:
    return _folder(state) / f"{quote(source, safe=' ')}.npy"


require_unfamiliar_task = unstored_task(require_unfamiliar, "compare with the ratings that have a budget")
note_task = unstored_task(note, "note which ratings were released")
