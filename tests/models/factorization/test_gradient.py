from __future__ import annotations

import numpy as np
import pytest

from models.errors import SpecError
from models.factorization.gradient import LEAST_BATCH, Pace, descend, descend_literally
from models.factorization.pmf import PMF
from models.privacy.noise import SeededNoise
from models.ratings import Ratings, RatingScale
from tests.models.contract import UNIFORM

ONE_FULL_STEP = Pace(n_epochs=1, learning_rate=7.0, momentum=0.8, precision=0.3, n_batches=1, batch_share=1)


def start(ratings: Ratings, d: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    return rng.normal(size=(ratings.n_users, d)), rng.normal(size=(ratings.n_items, d))


def errors(ratings: Ratings, U: np.ndarray, V: np.ndarray, centre: float) -> np.ndarray:
    return ratings.values - centre - (U[ratings.users] * V[ratings.items]).sum(axis=1)


def test_one_step_is_that_of_the_published_program(ratings: Ratings) -> None:
    U, V = start(ratings)
    e, own, item = errors(ratings, U, V, 3.0)[:, None], U[ratings.users], V[ratings.items]
    gradient_U, gradient_V = np.zeros_like(U), np.zeros_like(V)
    np.add.at(gradient_U, ratings.users, -2 * e * item + 0.3 * own)
    np.add.at(gradient_V, ratings.items, -2 * e * own + 0.3 * item)
    expected_U, expected_V = (F - 7.0 / LEAST_BATCH * g for F, g in ((U, gradient_U), (V, gradient_V)))
    descend(ratings, U, V, centre=3.0, pace=ONE_FULL_STEP)
    assert np.allclose(U, expected_U)
    assert np.allclose(V, expected_V)


def test_an_epoch_of_batches_meets_every_rating_once(ratings: Ratings) -> None:
    """With a tiny step the batches add up to the full gradient."""
    (U, V), (whole_U, whole_V) = start(ratings), start(ratings)
    before = V.copy()
    tiny = Pace(n_epochs=1, learning_rate=1e-4, momentum=0.0, precision=0.3, n_batches=1, batch_share=1)
    descend(ratings, whole_U, whole_V, centre=3.0, pace=tiny)
    descend(ratings, U, V, centre=3.0, pace=Pace(1, 1e-4, 0.0, 0.3, n_batches=7, batch_share=1))
    assert np.allclose(V - before, whole_V - before, rtol=1e-3, atol=1e-12)


def test_momentum_carries_the_last_step_on(ratings: Ratings) -> None:
    (U, V), (_, once) = start(ratings), start(ratings)
    still = V.copy()
    two = Pace(n_epochs=2, learning_rate=1e-5, momentum=0.5, precision=0.0, n_batches=1, batch_share=1)
    one = Pace(n_epochs=1, learning_rate=1e-5, momentum=0.5, precision=0.0, n_batches=1, batch_share=1)
    descend(ratings, U.copy(), once, centre=3.0, pace=one)
    descend(ratings, U, V, centre=3.0, pace=two)
    assert np.allclose(V - still, 2.5 * (once - still), rtol=1e-4, atol=1e-14)


def test_fixed_users_stay_and_clipped_ones_have_norm_one_at_most(ratings: Ratings) -> None:
    U, V = start(ratings)
    before = U.copy()
    descend(ratings, U, V, centre=3.0, pace=ONE_FULL_STEP, learns_U=False)
    assert (before == U).all()
    descend(ratings, U, V, centre=3.0, pace=ONE_FULL_STEP, clips_U=True)
    norms = np.linalg.norm(U, axis=1)
    assert norms.max() <= 1 + 1e-12
    assert norms.min() < 0.999  # it shrinks, and never stretches


def test_the_literal_descent_lowers_its_objective_and_steps_along_its_gradient(ratings: Ratings) -> None:
    def objective(U: np.ndarray, V: np.ndarray) -> float:
        return float((errors(ratings, U, V, 3.0) ** 2).sum() / 2 + 0.1 / 2 * ((U**2).sum() + (V**2).sum()))

    U, V = start(ratings)
    before, (U0, V0) = objective(U, V), (U.copy(), V.copy())
    descend_literally(ratings, U, V, centre=3.0, n_epochs=1, learning_rate=1e-7, precision=0.1)
    gradient_norm = (((U - U0) / 1e-7) ** 2).sum() + (((V - V0) / 1e-7) ** 2).sum()
    assert objective(U, V) - before == pytest.approx(-1e-7 * gradient_norm, rel=1e-3)


def test_another_scale_is_another_unit_and_nothing_else(ratings: Ratings) -> None:
    from dataclasses import replace

    wide = replace(ratings, values=100 * (ratings.values - 3), scale=RatingScale(low=-200, high=200, step=100))
    for solver in ("sm08", "gd"):
        here, there = (PMF(solver=solver, n_factors=3).fit(r, UNIFORM, SeededNoise(0)) for r in (ratings, wide))
        assert np.allclose(100 * here.factors.V, there.factors.V, rtol=1e-4, atol=1e-4)
        assert here.user_factors is not None
        assert there.user_factors is not None
        assert np.allclose(here.user_factors, there.user_factors, rtol=1e-4, atol=1e-6)


def test_divergence_is_one_sentence(ratings: Ratings) -> None:
    for solver in ("sm08", "gd"):
        with pytest.raises(SpecError, match="diverged"):
            PMF(solver=solver, learning_rate=1e6).fit(ratings, UNIFORM, SeededNoise(0))
