from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from models.errors import EnvironmentFault, NotReleasable
from models.ratings import Ratings
from tasks.familiar import SIZE, likeness, note, require_unfamiliar, sketch
from tasks.state import State
from tests.made_up import made_up_ratings

KEY = b"k" * 32


@pytest.fixture(scope="module")
def many() -> Ratings:
    return made_up_ratings(n_users=300)


def shuffled(ratings: Ratings) -> Ratings:
    order = np.random.default_rng(0).permutation(len(ratings))
    return replace(ratings, users=ratings.users[order], items=ratings.items[order], values=ratings.values[order])


def test_a_renamed_file_is_recognised_and_its_own_name_is_not_refused(state: State, many: Ratings) -> None:
    require_unfamiliar(state, "films", many)
    note(state, "films", many)
    require_unfamiliar(state, "films", many)
    mostly = many.where(np.random.default_rng(1).random(len(many)) < 0.7)
    for same in (many, shuffled(many), mostly):
        with pytest.raises(NotReleasable, match=r"those of films, which has a budget.*--source films"):
            require_unfamiliar(state, "renamed.csv", same)


def test_other_ratings_with_the_same_ids_are_others(state: State, many: Ratings) -> None:
    note(state, "films", many)
    require_unfamiliar(state, "books", made_up_ratings(n_users=300, seed=7))
    changed = replace(many, values=(6 - many.values).astype(np.float32))
    require_unfamiliar(state, "mirrored", changed)
    few = many.where(np.arange(len(many)) < len(many) // 4)
    require_unfamiliar(state, "a quarter", few)


def test_nothing_is_kept_where_the_account_alone_could_not_read_it(state: State, many: Ratings) -> None:
    note(state, "films", many)
    for path in [state.own_folder, *state.own_folder.rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path
    assert sorted(path.name for path in state.own_folder.rglob("*") if path.is_file()) == ["films.npy", "ratings.key"]


def test_a_sketch_that_is_damaged_is_one_sentence(state: State, many: Ratings) -> None:
    note(state, "films", many)
    (state.own_folder / "ratings" / "films.npy").write_bytes(b"")
    with pytest.raises(EnvironmentFault, match="is damaged"):
        require_unfamiliar(state, "books", many)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.8, 1.0])
def test_likeness_is_the_share_of_what_is_in_both(share: float) -> None:
    rng = np.random.default_rng(3)
    both, rest = rng.random(int(100_000 * share)), rng.random((2, int(50_000 * (1 - share))))
    one, other = (np.sort(np.concatenate([both, own]))[:SIZE] for own in rest)
    assert likeness(one, other) == pytest.approx(share, abs=0.06)


def test_empty_sets_are_alike_with_nothing(many: Ratings) -> None:
    none = sketch(KEY, many.where(np.zeros(len(many), bool)))
    assert len(none) == 0
    assert likeness(none, sketch(KEY, many)) == likeness(none, none) == 0


def test_without_the_key_the_hashes_are_others(many: Ratings) -> None:
    assert likeness(sketch(KEY, many), sketch(b"x" * 32, many)) == 0
