from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from models.errors import JaliError
from models.factorization.pmf import PMF
from models.privacy.specification import PrivacySpecification
from models.ratings import Ratings
from tasks import kept_folds
from tasks.fold_keys import fold_keys
from tasks.kept_folds import evaluated_fold, fold_places, forget_folds, forget_folds_of_nobody, forget_old_folds
from tasks.state import State
from tasks.training import FoldScores, deal, evaluate_fold
from tasks.turns import one_at_a_time

SPECIFICATION = PrivacySpecification(epsilon=1)
SMALL = PMF(n_factors=2, n_iterations=2)
FITS = [(SMALL, SPECIFICATION)]
N_FOLDS = 4


def cross_validated(state: State, ratings: Ratings, judge: Callable[..., FoldScores]) -> list[FoldScores]:
    """What a run does, with `judge` in place of the fits."""
    (places,) = fold_places(state, "films", ratings, FITS, N_FOLDS)
    dealt = deal(ratings, N_FOLDS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_folds, "evaluate_fold", judge)
        return [evaluated_fold(SMALL, ratings, SPECIFICATION, dealt, fold, place) for fold, place in enumerate(places)]


def files(state: State) -> list[Path]:
    return [path for path in (state.folder / "folds").rglob("*") if path.is_file()]


def test_a_killed_run_is_resumed_without_fitting_its_finished_folds_again(state: State, ratings: Ratings) -> None:
    fitted: list[int] = []

    def deadly(*arguments: object) -> FoldScores:
        if arguments[-1] == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return evaluate_fold(*arguments)  # type: ignore[arg-type]

    def counted(*arguments: object) -> FoldScores:
        fitted.append(arguments[-1])  # type: ignore[arg-type]
        return evaluate_fold(*arguments)  # type: ignore[arg-type]

    child = os.fork()
    if child == 0:
        cross_validated(state, ratings, deadly)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    resumed = cross_validated(state, ratings, counted)
    assert fitted == [3]
    forget_folds(state, "films")
    whole = cross_validated(state, ratings, counted)
    assert fitted == [3, 0, 1, 2, 3]
    assert [untimed(fold) for fold in resumed] == [untimed(fold) for fold in whole]  # nothing random in this fit


def untimed(scores: FoldScores) -> FoldScores:
    return replace(scores, fit_seconds=0, seconds=0)


def test_what_is_kept_is_what_was_computed_with_its_times(state: State, ratings: Ratings) -> None:
    def never(*arguments: object) -> FoldScores:
        raise AssertionError

    first = cross_validated(state, ratings, evaluate_fold)
    assert cross_validated(state, ratings, never) == first
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in files(state))


@pytest.mark.parametrize("damage", [b"", b"{}", b"[1]", b"\xff", b'{"fold": 1}'])
def test_a_damaged_fold_is_computed_anew(damage: bytes, state: State, ratings: Ratings) -> None:
    first = cross_validated(state, ratings, evaluate_fold)
    for file in files(state):
        file.write_bytes(damage)
    assert list(map(untimed, cross_validated(state, ratings, evaluate_fold))) == list(map(untimed, first))


def test_nothing_is_kept_of_a_fold_that_fails(state: State, ratings: Ratings) -> None:
    def failing(*arguments: object) -> FoldScores:
        raise ValueError

    with pytest.raises(JaliError, match="Cross-validation failed"):
        cross_validated(state, ratings, failing)
    assert files(state) == []


def test_once_a_run_ends_nothing_accumulates_and_other_sources_keep_theirs(state: State, ratings: Ratings) -> None:
    cross_validated(state, ratings, evaluate_fold)
    cross_validated(state, ratings.where(np.arange(len(ratings)) > 0), evaluate_fold)
    (other,) = fold_places(state, "books", ratings, FITS, 2)
    other[0].write_text("")
    forget_folds(state, "films")
    assert files(state) == [other[0]]
    forget_folds(state, "films")  # and nothing is no mistake


def test_preferences_settings_and_the_specification_are_in_a_folds_name(state: State, ratings: Ratings) -> None:
    def name(of: Ratings, recommender: PMF = SMALL, specification: PrivacySpecification = SPECIFICATION) -> str:
        return fold_keys(state, of, [(recommender, specification)], 2)[0][0]

    asked = replace(ratings, own_epsilon=np.ones(len(ratings)))
    less = replace(ratings, own_epsilon=np.full(len(ratings), 0.5))
    not_public = replace(ratings, catalogue=replace(ratings.catalogue, public=False))
    names = [name(one) for one in (ratings, asked, less, not_public)]
    names += [name(ratings, PMF(n_factors=3, n_iterations=2))]
    names += [name(ratings, specification=PrivacySpecification(epsilon=2))]
    assert len(set(names)) == len(names)
    assert name(ratings) == names[0]


def kept(state: State, source: str, *, days: float) -> Path:
    place = state.folder / "folds" / source / "fold.json"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.touch()
    os.utime(place, times=(time.time() - days * 86400,) * 2)
    return place


def test_folds_of_a_source_that_is_never_run_again_are_forgotten_after_a_month(state: State) -> None:
    new, old, at_work = (kept(state, source, days=days) for source, days in (("a", 29), ("b", 31), ("c", 31)))
    with one_at_a_time("c"):
        forget_old_folds(state)
    assert [place.exists() for place in (new, old.parent, at_work)] == [True, False, True]
    forget_old_folds(state)
    assert files(state) == [new]


def test_folds_go_with_the_schedule_of_their_source_unless_a_run_is_at_work_on_them(state: State) -> None:
    films, books = kept(state, "films", days=0), kept(state, "books", days=0)
    with one_at_a_time("films"):
        forget_folds_of_nobody(state, "films")
    assert films.exists()
    for source in ("films", "none", "..", "../runs"):
        forget_folds_of_nobody(state, source)
    assert files(state) == [books]
    assert not films.parent.exists()
