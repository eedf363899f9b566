from __future__ import annotations

import inspect
import pickle

import numpy as np
import pytest

import tasks.loading
import tasks.publishing
import tasks.tracking
import tasks.training
import tasks.validation
from models.errors import NotReleasable
from models.histogram.pdp_histogram import PDPHistogram
from models.privacy.specification import PrivacySpecification
from models.ratings import Ratings
from tasks import training
from tasks.training import deal, evaluate_fold

Pairs = set[tuple[int, int]]


def pairs(ratings: Ratings) -> Pairs:
    return set(zip(ratings.users.tolist(), ratings.items.tolist(), strict=True))


class Recorder(PDPHistogram, frozen=True):
    """Notes every set of ratings it is fitted on."""

    def fit(self, ratings, specification, noise, *, n_threads=1):  # type: ignore[no-untyped-def]
        fitted_on.append(pairs(ratings))
        return super().fit(ratings, specification, noise, n_threads=n_threads)


fitted_on: list[Pairs] = []


def test_no_test_rating_is_trained_on_or_folded_in(ratings: Ratings, monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[tuple[Pairs, Pairs]] = []
    client_scores = training.client_scores

    def judge(fitted, own, test):  # type: ignore[no-untyped-def]
        judged.append((pairs(own), pairs(test)))
        return client_scores(fitted, own, test)

    monkeypatch.setattr(training, "client_scores", judge)
    dealt = deal(ratings, 4)
    seen_in_tests: list[Pairs] = []
    for fold in range(4):
        fitted_on.clear()
        judged.clear()
        evaluate_fold(Recorder(), ratings, PrivacySpecification(epsilon=1), dealt, fold)
        trained_for_clients, trained_for_visitors = fitted_on
        ((own, test),) = judged
        seen_in_tests.append(test)
        assert not trained_for_clients & test
        assert own == trained_for_clients
        assert trained_for_clients | test == pairs(ratings)
        visitors = set(np.flatnonzero(dealt.users == fold).tolist())
        assert len(visitors) == ratings.n_users // 4
        assert not {user for user, _ in trained_for_visitors} & visitors
        assert {user for user, _ in trained_for_visitors} | visitors == set(range(ratings.n_users))
    assert set.union(*seen_in_tests) == pairs(ratings)
    assert sum(map(len, seen_in_tests)) == len(ratings)


def test_who_is_in_which_fold_is_private_like_the_ratings(ratings: Ratings) -> None:
    dealt = deal(ratings, 4)
    assert repr(dealt) == "<deal into 4 folds>"
    with pytest.raises(NotReleasable):
        pickle.dumps(dealt)


def test_every_task_that_sees_ratings_lets_no_foreign_exception_out() -> None:
    modules = (tasks.loading, tasks.validation, tasks.training, tasks.publishing, tasks.tracking)
    wrapped = [value for module in modules for name, value in vars(module).items() if name.endswith("_task")]
    wrapped = [task for task in wrapped if hasattr(task, "fn")]
    assert len(wrapped) >= 7
    for task in wrapped:
        assert inspect.unwrap(task.fn) is not task.fn, f"{task.name} is not guarded"
        assert task.retries == 0
        assert task.persist_result is False
