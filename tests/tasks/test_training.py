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
from flows.job import Job
from flows.run import bill
from models import private_metrics
from models.candidate import Candidate
from models.errors import NotReleasable
from models.histogram.pdp_histogram import PDPHistogram
from models.privacy.noise import SeededNoise
from models.privacy.specification import PrivacySpecification
from models.private_metrics import PaidMetrics, PrivateMetrics
from models.ratings import Ratings
from tasks import training
from tasks.ledger import Ledger
from tasks.state import State
from tasks.training import deal, evaluate_fold, fit_private

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


def test_every_fit_of_a_cross_validation_has_noise_of_its_own_without_a_seed(
    ratings: Ratings, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[SeededNoise] = []
    monkeypatch.setattr(training, "SeededNoise", lambda *seed: made.append(SeededNoise(*seed)) or made[-1])
    for _ in range(2):
        np.random.seed(0)
        evaluate_fold(PDPHistogram(), ratings, PrivacySpecification(epsilon=1), deal(ratings, 4), 0)
    drawn = [tuple(noise.add_knorm(np.zeros((3, 1), np.int64), scale=1e15).ravel()) for noise in made]
    assert len(set(drawn)) == 4


def test_a_release_whose_rmse_is_paid_for_was_not_fitted_to_what_it_is_measured_on(
    ratings: Ratings, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[tuple[Pairs, Pairs]] = []
    exact_sums = private_metrics.exact_sums

    def judge(factors, own, left_out):  # type: ignore[no-untyped-def]
        measured.append((pairs(own), pairs(left_out)))
        return exact_sums(factors, own, left_out)

    monkeypatch.setattr(private_metrics, "exact_sums", judge)
    fitted_on.clear()
    specification, price = PrivacySpecification(epsilon=1), PrivateMetrics(epsilon=2)
    candidate = Candidate(Recorder(), specification, Recorder().promise(specification), price)
    (reservation,) = Ledger(state).reserve([bill(Job(source="films"), candidate)])
    bought = PaidMetrics.of(fit_private(Recorder(), ratings, specification, reservation, price))
    assert bought is not None
    assert bought.price == price
    assert 0 < bought.low < bought.high < 4
    ((own, left_out),) = measured
    assert fitted_on == [own]
    assert not own & left_out
    assert len(left_out) > 200
    assert own | left_out <= pairs(ratings)


def test_who_is_in_which_fold_is_private_like_the_ratings(ratings: Ratings) -> None:
    dealt = deal(ratings, 4)
    assert repr(dealt) == "<deal into 4 folds>"
    with pytest.raises(NotReleasable):
        pickle.dumps(dealt)


SPEND_NOTHING = {"load", "open MLflow"}
"""Nobody was charged yet, and nothing fitted."""


def test_every_task_that_sees_ratings_lets_no_foreign_exception_out() -> None:
    modules = (tasks.loading, tasks.validation, tasks.training, tasks.publishing, tasks.tracking)
    wrapped = [value for module in modules for name, value in vars(module).items() if name.endswith("_task")]
    wrapped = [task for task in wrapped if hasattr(task, "fn")]
    assert len(wrapped) >= 7
    for task in wrapped:
        assert inspect.unwrap(task.fn) is not task.fn, f"{task.name} is not guarded"
        assert task.retries == 0 or task.name in SPEND_NOTHING
        assert task.persist_result is False
