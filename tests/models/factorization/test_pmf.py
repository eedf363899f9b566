from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from models.evaluation import client_scores, deal_ratings, paper_scores
from models.factorization.als import solve_factors
from models.factorization.pmf import PMF
from models.privacy.noise import SeededNoise
from models.ratings import Ratings
from tests.models.contract import UNIFORM, RecommenderContract
from tests.real_data import load_ml_1m


class TestPMF(RecommenderContract):
    recommender = PMF(n_factors=5)


@pytest.mark.parametrize("n_threads", [1, 2, 3])
@pytest.mark.parametrize("d", [1, 3, 4, 7, 20])
def test_a_half_sweep_is_a_ridge_regression_for_every_row(ratings: Ratings, d: int, n_threads: int) -> None:
    V = np.random.default_rng(0).normal(size=(ratings.n_items, d))
    U = solve_factors(ratings.by_user, V, centre=3.0, precision=0.06, n_threads=n_threads)
    own = ratings.by_user
    for user in (0, 17, ratings.n_users - 1):
        entries = slice(own.start[user], own.start[user + 1])
        X, y = V[own.other[entries]], own.values[entries] - 3.0
        expected = np.linalg.solve(X.T @ X + 0.06 * len(y) * np.eye(d), X.T @ y)
        assert np.allclose(U[user], expected)


def test_rows_without_ratings_are_zero(ratings: Ratings) -> None:
    U = np.ones((ratings.n_users, 4))
    V = solve_factors(ratings.by_item, U, centre=2.9, precision=0.06)
    assert (V[-3:] == 0).all()
    assert (V[:-3] != 0).any(axis=1).all()


def test_factors_so_huge_that_the_ridge_is_lost_in_rounding_are_no_trouble(ratings: Ratings) -> None:
    V = 1e9 * np.random.default_rng(0).normal(size=(ratings.n_items, 2)) @ np.ones((2, 5))
    assert np.isfinite(solve_factors(ratings.by_user, V, centre=3.0, precision=1e-6)).all()


def test_every_sweep_lowers_the_objective(ratings: Ratings) -> None:
    mean, precision = float(ratings.values.mean()), 0.06

    def objective(n_sweeps: int) -> float:
        fitted = PMF(n_factors=4, n_iterations=n_sweeps, precision=precision).fit(ratings, UNIFORM, SeededNoise(0))
        U, V = fitted.user_factors, fitted.factors.V.astype(float)
        assert U is not None
        error = ratings.values - mean - (U[ratings.users] * V[ratings.items]).sum(axis=1)
        penalty = ratings.by_user.counts @ (U**2).sum(axis=1) + ratings.by_item.counts @ (V**2).sum(axis=1)
        return float((error**2).sum() + precision * penalty)

    values = [objective(n_sweeps) for n_sweeps in (1, 2, 4, 8)]
    assert values == sorted(values, reverse=True)


def test_fold_in_is_the_last_half_sweep_once_more(ratings: Ratings) -> None:
    is_test = deal_ratings(ratings, 5) == 0
    train, test = ratings.where(~is_test), ratings.where(is_test)
    fitted = PMF(n_factors=3, n_iterations=60).fit(train, UNIFORM, SeededNoise(0))
    client, paper = client_scores(fitted, train, test), paper_scores(fitted, test)
    assert client is not None
    assert paper is not None
    assert client.rmse == pytest.approx(paper.rmse, abs=5e-3)


@pytest.mark.slow
def test_the_rmse_on_ml_1m_is_that_of_systems_a1(ml_1m: Path) -> None:
    """15 sweeps with d=20: .862 in SYSTEMS A1; here one fold of five."""
    ratings = load_ml_1m(ml_1m)
    is_test = deal_ratings(ratings, 5) == 0
    train, test = ratings.where(~is_test), ratings.where(is_test)
    scores = paper_scores(PMF().fit(train, UNIFORM, SeededNoise(0), n_threads=2), test)
    assert scores is not None
    assert scores.rmse == pytest.approx(0.8615, abs=0.0035)
