from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from models.errors import EnvironmentFault, NotReleasable
from models.privacy.budget import Budget
from models.ratings import Ratings
from tasks.familiar import SIZE, require_unfamiliar, share_known, sketch
from tasks.ledger import Ledger
from tasks.state import State
from tests.made_up import made_up_ratings

KEY = b"k" * 32


@pytest.fixture(scope="module")
def many() -> Ratings:
    return made_up_ratings(n_users=300)


@pytest.fixture
def state(state: State) -> State:
    """Of an account that knows a budget of `films`."""
    Ledger(state).set_budget("films", Budget(epsilon=1))
    return state


def some(ratings: Ratings, share: float, seed: int = 1) -> Ratings:
    return ratings.where(np.random.default_rng(seed).random(len(ratings)) < share)


def shuffled(ratings: Ratings) -> Ratings:
    order = np.random.default_rng(0).permutation(len(ratings))
    return replace(ratings, users=ratings.users[order], items=ratings.items[order], values=ratings.values[order])


def test_a_renamed_file_is_recognised_and_its_own_name_is_not_refused(state: State, many: Ratings) -> None:
    require_unfamiliar(state, "films", many)
    require_unfamiliar(state, "films", many)
    for same in (many, shuffled(many), some(many, 0.3)):
        with pytest.raises(NotReleasable, match=r"those of films, which has a budget.*--source films"):
            require_unfamiliar(state, "renamed.csv", same)


def test_what_was_released_before_there_was_a_budget_is_recognised_too(state: State, many: Ratings) -> None:
    require_unfamiliar(state, "books", many)
    require_unfamiliar(state, "other", many)
    Ledger(state).set_budget("books", Budget(epsilon=1))
    with pytest.raises(NotReleasable, match="those of books"):
        require_unfamiliar(state, "other", many)


def test_a_source_stays_known_by_all_it_ever_held(state: State, many: Ratings) -> None:
    nights = [many.where(np.arange(len(many)) % 10 == night) for night in range(10)]
    for night in nights:
        require_unfamiliar(state, "films", night)
    for night in (nights[0], nights[5], many):
        with pytest.raises(NotReleasable):
            require_unfamiliar(state, "renamed.csv", night)


def test_other_ratings_with_the_same_ids_are_others(state: State, many: Ratings) -> None:
    require_unfamiliar(state, "films", some(many, 0.2))
    require_unfamiliar(state, "five times as many", many)
    require_unfamiliar(state, "books", made_up_ratings(n_users=300, seed=7))
    require_unfamiliar(state, "mirrored", replace(many, values=(6 - many.values).astype(np.float32)))


def test_nothing_is_kept_where_the_account_alone_could_not_read_it(state: State, many: Ratings) -> None:
    require_unfamiliar(state, "films", many)
    for path in [state.own_folder, *state.own_folder.rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path
    assert {"films.npy", "ratings.key"} <= {path.name for path in state.own_folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("n_own", "n_other"), [(50_000, 50_000), (50_000, 500_000), (500, 100_000), (100_000, 500)])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.8])
def test_the_share_that_is_known_is_estimated_whatever_the_sizes(share: float, n_own: int, n_other: int) -> None:
    rng = np.random.default_rng(3)
    own, others = rng.random(n_own), rng.random(n_other)
    n_both = int(min(share * n_own, n_other))
    other = np.concatenate([own[:n_both], others[n_both:]])
    estimate = share_known(np.unique(own)[:SIZE], np.unique(other)[:SIZE])
    assert estimate == pytest.approx(n_both / n_own, abs=0.2 if n_own == 500 else 0.06)


def test_no_ratings_are_nobodys(many: Ratings) -> None:
    none = sketch(KEY, many.where(np.zeros(len(many), bool)))
    assert len(none) == 0
    assert share_known(none, sketch(KEY, many)) == share_known(none, none) == share_known(sketch(KEY, many), none) == 0


def test_without_the_key_the_hashes_are_others(many: Ratings) -> None:
    assert share_known(sketch(KEY, many), sketch(b"x" * 32, many)) == 0


def test_a_sketch_that_is_damaged_is_one_sentence(state: State, many: Ratings) -> None:
    require_unfamiliar(state, "films", many)
    (state.own_folder / "ratings" / "films.npy").write_bytes(b"")
    with pytest.raises(EnvironmentFault, match="is damaged"):
        require_unfamiliar(state, "books", many)
