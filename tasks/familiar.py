"""Whether ratings under a new name are those of a source with a budget: a guard against a renamed file.

Of every source that was released this account keeps a sketch of the ratings in its own folder: the smallest of the
keyed hashes of (user, item, level), over all its releases. Without the key, which lies beside them, they say nothing;
like the ratings they stay inside. The smallest hashes of a set are a sample of it (Broder, SEQUENCES 1997).
"""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from urllib.parse import quote, unquote

import numpy as np

from models.errors import EnvironmentFault, NotReleasable, shown
from models.privacy.keyed_hash import pair_uniforms
from models.ratings import Doubles, Ratings
from tasks.durable import write_whole
from tasks.guard import guarded
from tasks.ledger_witness import is_remembered
from tasks.private_key import private_key
from tasks.state import State
from tasks.unstored import unstored_task

SIZE = 8192
FAMILIAR = 0.5
"""Which share of the ratings must be another source's for them to be taken for it."""


@guarded("Comparing the ratings with those that have a budget")
def require_unfamiliar(state: State, source: str, ratings: Ratings) -> None:
    """Note these ratings under their source, unless they are those of another one, which has a budget.

    Raises:
      NotReleasable: they are.
    """
    own = sketch(_key(state), ratings)
    for file in _folder(state).glob("*.npy"):
        other = unquote(file.stem)
        if other != source and is_remembered(state, other) and share_known(own, _load(file)) >= FAMILIAR:
            raise NotReleasable(
                f"these ratings are, for the greater part, those of {shown(other)}, which has a budget: another name "
                f"makes no other budget. Nothing was spent and nothing released. Run with --source {shown(other)}."
            )
    _note(state, source, own)


def sketch(key: bytes, ratings: Ratings) -> Doubles:
    """The SIZE smallest of the ratings' keyed hashes, or all where there are fewer; sorted."""
    levels = ratings.scale.levels
    labels = [f"{item}\0{level:g}" for item in ratings.catalogue.items for level in levels]
    cells = (ratings.items.astype(np.int64) * len(levels) + ratings.scale.level_of(ratings.values)).astype(np.int32)
    return _smallest(pair_uniforms(key.hex(), ratings.user_labels, labels, ratings.users, cells))


def share_known(own: Doubles, other: Doubles) -> float:
    """Of the ratings behind one sketch the estimated share that is behind the other, too; 0 for no ratings."""
    either = np.union1d(own, other)[:SIZE]
    sample = own[own <= either[-1]] if len(own) else own  # up to there both sketches are whole
    return float(np.isin(sample, other).mean()) if len(sample) else 0.0


def _smallest(hashes: Doubles) -> Doubles:
    return np.unique(hashes)[:SIZE]


def _note(state: State, source: str, own: Doubles) -> None:
    """Before anything is fitted, and added to what was noted before: a source stays known by all it ever held."""
    _folder(state).mkdir(parents=True, exist_ok=True, mode=0o700)
    file = _file(state, source)
    before = _load(file) if file.exists() else np.empty(0)
    content = BytesIO()
    np.save(content, _smallest(np.concatenate([before, own])))
    write_whole(file, content.getvalue())


def _load(file: Path) -> Doubles:
    try:
        return np.asarray(np.load(file), np.float64)
    except (ValueError, EOFError):
        raise EnvironmentFault(f"{file} is damaged. Remove it: the next run under its name makes it anew.") from None


def _key(state: State) -> bytes:
    state.own_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return private_key(state.own_folder / "ratings.key", "remove it, with the folder ratings beside it")


def _folder(state: State) -> Path:
    return state.own_folder / "ratings"


def _file(state: State, source: str) -> Path:
    return _folder(state) / f"{quote(source, safe=' ')}.npy"


require_unfamiliar_task = unstored_task(require_unfamiliar, "compare with the ratings that have a budget")
