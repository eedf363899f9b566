"""dp-pmf and pdp-pmf: what the papers say holds where U is constant, and nothing of it where it is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from models.errors import SpecError
from models.evaluation import deal_ratings, paper_scores
from models.factorization import dp_pmf
from models.factorization.dp_pmf import DPPMF, STEPS, perturbed
from models.factorization.pdp_pmf import PDPPMF
from models.privacy.noise import NoiseSource, SeededNoise
from models.privacy.specification import Policy, Preferences, PrivacySpecification
from models.ratings import Ratings
from tests.made_up import made_up_ratings
from tests.models.contract import RecommenderContract
from tests.real_data import load_ml_1m
from tests.recorder import Recorder

EPSILON = PrivacySpecification(epsilon=0.5, relation="replace_value")
DEFAULT = PrivacySpecification(policy=Policy(), relation="replace_value")


class TestDPPMF(RecommenderContract):
    recommender = DPPMF(n_factors=5)


class TestDPPMFAsPublished(RecommenderContract):
    recommender = DPPMF(n_factors=5, solver="alg2")


class TestPDPPMF(RecommenderContract):
    recommender = PDPPMF(n_factors=5)


class TestPDPPMFAsPublished(RecommenderContract):
    recommender = PDPPMF(n_factors=5, solver="alg2")


def changed(ratings: Ratings, at: int, value: float) -> Ratings:
    values = ratings.values.copy()
    values[at] = value
    return Ratings(ratings.users, ratings.items, values, ratings.user_labels, ratings.catalogue, ratings.scale)


def measured(ratings: Ratings, recommender: DPPMF = DPPMF(n_factors=5)) -> tuple[np.ndarray, float]:  # noqa: B008
    """The right-hand sides to which noise is added, in steps, and its scale; the only noise there is."""
    recorder = Recorder()
    recommender.fit(ratings, EPSILON, recorder)
    ((law, values, scale),) = recorder.given
    assert law == "knorm"
    return values, scale


@pytest.fixture
def constant_U(monkeypatch: pytest.MonkeyPatch) -> None:
    """U as the theorem has it: given, with rows of norm 1, whatever the ratings are."""

    def descend(ratings: Ratings, U: np.ndarray, V: np.ndarray, **_: object) -> None:
        U[:] = np.random.default_rng(0).normal(size=U.shape)
        U /= np.linalg.norm(U, axis=1, keepdims=True)

    monkeypatch.setattr(dp_pmf, "descend", descend)


@pytest.mark.usefixtures("constant_U")
def test_with_U_constant_a_changed_rating_costs_epsilon_and_the_bound_is_reached(ratings: Ratings) -> None:
    losses = []
    for at in range(0, len(ratings), 7):
        one, scale = measured(changed(ratings, at, 1.0))
        other, _ = measured(changed(ratings, at, 5.0))
        moved = np.linalg.norm(one - other, axis=1)
        assert np.flatnonzero(moved).tolist() == [ratings.items[at]]
        losses.append(moved.max() / scale)  # the log-ratio of exp(-|x| / scale) is at most this
    assert max(losses) <= 0.5
    assert max(losses) > 0.5 * (1 - 1e-5)


@pytest.mark.usefixtures("constant_U")
def test_the_top_of_the_scale_asks_for_more_noise_and_never_for_less_than_the_width(ratings: Ratings) -> None:
    _, by_range = measured(ratings)
    _, by_top = measured(ratings, DPPMF(n_factors=5, sensitivity="highest"))
    assert by_top / by_range == pytest.approx(5 / 4, rel=1e-5)


def test_U_is_not_constant_and_a_changed_rating_costs_more_than_epsilon() -> None:
    """Why the verdict is conditional: the change moves the other items of the same user too."""
    ratings = made_up_ratings(n_users=30, n_items=20, per_user=8)
    one, scale = measured(changed(ratings, 3, 1.0))
    other, _ = measured(changed(ratings, 3, 5.0))
    moved = np.linalg.norm(one - other, axis=1) / scale
    assert (moved > 0).sum() > 8
    assert moved.sum() > 2 * 0.5


def test_the_closed_form_solves_for_every_item(ratings: Ratings) -> None:
    fitted = DPPMF(n_factors=4, precision=0.7).fit(ratings, EPSILON, Recorder())
    U, V = fitted.user_factors, fitted.factors.V
    assert U is not None
    assert np.linalg.norm(U, axis=1).max() <= 1 + 1e-12
    for item in (0, 11, ratings.n_items - 1):
        of_item = ratings.items == item
        X, y = U[ratings.users[of_item]], ratings.values[of_item] - 3.0
        assert np.allclose(V[item], np.linalg.solve(X.T @ X + 0.7 * np.eye(4), X.T @ y), atol=1e-4)


class OneVector(Recorder):
    """Adds the same known vector to every row."""

    def add_knorm(self, values: np.ndarray, *, scale: float) -> np.ndarray:
        return values + np.array([3, 0, 0, 0]) * STEPS


def test_noise_enters_the_right_hand_side(ratings: Ratings) -> None:
    recommender = DPPMF(n_factors=4, precision=0.7)
    without, having = (recommender.fit(ratings, EPSILON, noise) for noise in (Recorder(), OneVector()))
    U = without.user_factors
    assert U is not None
    X = U[ratings.users[ratings.items == 5]]
    expected = np.linalg.solve(X.T @ X + 0.7 * np.eye(4), [3.0, 0, 0, 0])
    assert np.allclose(having.factors.V[5] - without.factors.V[5], expected, atol=1e-4)
    assert having.factors.V[-1] == pytest.approx([3 / 0.7, 0, 0, 0])  # nobody rated it


@pytest.mark.parametrize(("noise_per", "n_draws", "share"), [("batch_share", 12, 4), ("batch", 12, 1), ("epoch", 3, 1)])
def test_the_published_algorithm_draws_anew_in_every_step(
    ratings: Ratings, noise_per: str, n_draws: int, share: int
) -> None:
    recorder = Recorder()
    settings = {"n_noisy_iterations": 3, "n_batches": 4, "n_factors": 2, "noise_per": noise_per}
    DPPMF(solver="alg2", **settings).fit(ratings, EPSILON, recorder)
    assert [law for law, _, _ in recorder.given] == ["knorm"] * n_draws
    assert {scale / STEPS for _, _, scale in recorder.given} == {5 / 0.5 / share}


def test_the_published_algorithm_starts_from_the_private_V(ratings: Ratings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the noisy steps do nothing, what is released is exactly the V that was fitted without privacy."""
    fitted: list[np.ndarray] = []

    def descend(ratings: Ratings, U: np.ndarray, V: np.ndarray, **settings: object) -> None:
        if "perturb" not in settings:
            original(ratings, U, V, **settings)  # type: ignore[arg-type]
            fitted.append(V.copy())

    original = dp_pmf.descend
    monkeypatch.setattr(dp_pmf, "descend", descend)
    released = DPPMF(solver="alg2", n_factors=3).fit(ratings, EPSILON, SeededNoise(0)).factors.V
    assert (released == fitted[0].astype(np.float32)).all()
    assert np.std(released) > 0.15  # it has learned something since its start


def test_perturbing_rounds_to_the_grid() -> None:
    exact = np.array([[0.1, 0.2]])
    noisy = perturbed(exact, 3.0, SeededNoise(1)) * STEPS
    assert (noisy == np.rint(noisy)).all()
    assert np.abs(perturbed(exact, 3.0, Recorder()) - exact).max() <= 0.5 / STEPS


def test_verdicts_follow_from_the_settings() -> None:
    assert DPPMF().promise(EPSILON).verdict == "conditional"
    assert DPPMF(solver="alg2").promise(EPSILON).verdict == "broken"
    assert "50 times" in DPPMF(solver="alg2").promise(EPSILON).sentence
    assert "7 times" in DPPMF(solver="alg2", n_noisy_iterations=7).promise(EPSILON).sentence
    assert "(3.5)" in DPPMF(solver="alg2", n_noisy_iterations=7).promise(EPSILON).sentence
    assert PDPPMF().promise(EPSILON).verdict == "conditional"  # nothing is sampled: it is dp-pmf
    assert PDPPMF(solver="alg2").promise(EPSILON).verdict == "broken"
    sampled = PDPPMF(threshold="max").promise(DEFAULT)
    assert sampled.verdict == "broken"
    assert "the threshold, 1" in sampled.conditions[-1]
    assert PDPPMF(threshold=0.1).promise(DEFAULT).verdict == "conditional"  # every rating has at least the threshold
    for recommender in (DPPMF(), DPPMF(solver="alg2"), PDPPMF()):
        assert recommender.promise(DEFAULT).proven_epsilon is None


def test_with_a_policy_everybody_has_the_least_epsilon(ratings: Ratings) -> None:
    assert DPPMF().promise(DEFAULT).epsilon_summary == "0.1"
    recorder = Recorder()
    DPPMF(n_factors=5).fit(ratings, DEFAULT, recorder)
    assert recorder.given[0][2] / STEPS == pytest.approx(4 / 0.1, rel=1e-5)


@pytest.mark.parametrize(("threshold", "expected"), [("mean", 0.393), ("max", 1.0), (0.3, 0.3)])
def test_sampling_and_noise_have_the_same_threshold(ratings: Ratings, threshold, expected: float) -> None:
    recorder = Recorder()
    PDPPMF(n_factors=5, threshold=threshold).fit(ratings, DEFAULT, recorder)
    own = DEFAULT.epsilon_of(ratings)
    naive = np.where(own < expected, np.expm1(own) / np.expm1(expected), 1.0)
    assert np.allclose(recorder.probabilities[0], naive)
    assert recorder.given[0][2] / STEPS == pytest.approx(4 / expected, rel=1e-5)


def test_what_was_sampled_out_is_not_looked_at(ratings: Ratings) -> None:
    class Half(Recorder):
        def keep(self, probabilities: np.ndarray) -> np.ndarray:
            return np.arange(len(probabilities)) % 2 == 0

    def right(ratings: Ratings) -> np.ndarray:
        recorder: NoiseSource = Half()
        PDPPMF(n_factors=3).fit(ratings, DEFAULT, recorder)
        assert isinstance(recorder, Half)
        return recorder.given[0][1]

    assert (right(ratings) == right(changed(ratings, 1, 5.0))).all()
    assert (right(changed(ratings, 2, 1.0)) != right(changed(ratings, 2, 5.0))).any()


def asking(ratings: Ratings, epsilon: np.ndarray) -> Ratings:
    return replace(ratings, own_epsilon=epsilon)


@pytest.mark.parametrize("recommender", [DPPMF(n_factors=3), PDPPMF(n_factors=3)])
def test_who_asked_for_nothing_to_be_spent_is_left_out(ratings: Ratings, recommender: DPPMF | PDPPMF) -> None:
    levels = PrivacySpecification(
        preferences=Preferences(default=0.5, levels={"out": 0, "in": 0.5}), relation="replace_value"
    )
    epsilon = np.where(ratings.users == 7, 0.0, 0.5)
    at = int(np.flatnonzero(ratings.users == 7)[0])

    class Sampler(Recorder):
        def keep(self, probabilities: np.ndarray) -> np.ndarray:
            return probabilities > 0

    def right(ratings: Ratings) -> np.ndarray:
        recorder = Sampler()
        recommender.fit(asking(ratings, epsilon), levels, recorder)
        return recorder.given[0][1]

    assert (right(changed(ratings, at, 1.0)) == right(changed(ratings, at, 5.0))).all()


def test_free_numbers_declare_no_least_epsilon_for_all() -> None:
    free = PrivacySpecification(preferences=Preferences(default=0.5, cap=1), relation="replace_value")
    with pytest.raises(SpecError, match="dp-pmf gives everybody the least epsilon"):
        DPPMF().promise(free)
    assert PDPPMF().promise(free).verdict == "broken"


def test_users_are_refitted_from_what_is_released_on_request(ratings: Ratings) -> None:
    published = DPPMF(n_factors=3).fit(ratings, EPSILON, SeededNoise(0))
    refitted = DPPMF(n_factors=3, local_refit=True, precision=0.01).fit(ratings, EPSILON, SeededNoise(0))
    assert (published.factors.V == refitted.factors.V).all()
    own = ratings.users == 4
    X, y = published.factors.V[ratings.items[own]].astype(float), ratings.values[own] - 3.0
    assert refitted.user_factors is not None
    assert np.allclose(refitted.user_factors[4], np.linalg.solve(X.T @ X + 0.01 * np.eye(3), X.T @ y), atol=1e-4)


def test_the_wrong_relation_names_the_right_one() -> None:
    with pytest.raises(SpecError, match="replace_value"):
        DPPMF().promise(PrivacySpecification(epsilon=1))


@pytest.mark.slow
def test_the_rmse_on_ml_1m_is_near_that_of_systems_g(ml_1m: Path) -> None:
    """One fold; the prototype of G has .997 and .926 for the published algorithm."""
    ratings = load_ml_1m(ml_1m)
    is_test = deal_ratings(ratings, 10) == 0
    train, test = ratings.where(~is_test), ratings.where(is_test)

    def rmse(recommender: DPPMF | PDPPMF) -> float:
        scores = paper_scores(recommender.fit(train, DEFAULT, SeededNoise(0)), test)
        assert scores is not None
        return scores.rmse

    assert rmse(DPPMF(solver="alg2")) == pytest.approx(0.98, abs=0.03)
    assert rmse(PDPPMF(solver="alg2")) == pytest.approx(0.935, abs=0.02)
    assert rmse(DPPMF()) > 1.9
