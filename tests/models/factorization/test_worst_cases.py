"""What an audit shows of dp-pmf and pdp-pmf: more than they claim, and no more where U is constant as in the proof."""

from __future__ import annotations

import pytest

from models.audit.audit import shown_by
from models.audit.claim import claim_of
from models.audit.runs import Mechanism
from models.audit.statistics import LEARNERS, QUICK
from models.factorization.dp_pmf import DPPMF, ObjectivePerturbation
from models.factorization.pdp_pmf import PDPPMF
from models.privacy.noise import SeededNoise
from models.privacy.sampling import keeping_probability
from models.privacy.specification import Policy, Preferences, PrivacySpecification, Relation
from models.ratings import RatingScale
from tests.models.factorization.test_dp_pmf import constant_U  # noqa: F401 - a fixture

STARS = RatingScale(low=1, high=5)
ONE = PrivacySpecification(epsilon=1, relation="replace_value")
POLICY = PrivacySpecification(policy=Policy(), relation="replace_value")
ASKED = Preferences(default=0.5, levels={"out": 0, "in": 2})
LEVELS = PrivacySpecification(preferences=ASKED, relation="replace_value")


def shown_and_claimed(
    recommender: ObjectivePerturbation,
    specification: PrivacySpecification,
    relation: Relation,
    n_runs: int,
    confidence: float = 0.95,
) -> tuple[float, float]:
    """Epsilon of the recommender's own worst pair, by the statistics that are quick to learn."""
    (pair,) = recommender.worst_neighbours(specification, relation, STARS)
    claim = claim_of(recommender, specification, relation, pair, STARS)
    mechanism = Mechanism(recommender, specification, STARS, SeededNoise(1), recommender.fit, lambda n: None)
    learners = {name: LEARNERS[name] for name in QUICK}
    return shown_by(claim, *mechanism.outputs(pair, n_runs // 2), learners, confidence).epsilon, claim.epsilon


@pytest.mark.parametrize("specification", [ONE, POLICY, LEVELS], ids=["one", "policy", "levels"])
@pytest.mark.parametrize("solver", ["exact", "alg2"])
@pytest.mark.parametrize("scale", [STARS, RatingScale(low=0.5, high=5, step=0.5), RatingScale(low=0, high=1)])
def test_the_pair_differs_in_one_rating_alone(
    specification: PrivacySpecification, solver: str, scale: RatingScale
) -> None:
    for recommender in (DPPMF(solver=solver), PDPPMF(solver=solver)):
        (pair,) = recommender.worst_neighbours(specification, "replace_value", scale)
        (first,), (second,) = pair.histories(specification, scale)
        assert (first.users == second.users).all()
        assert (first.items == second.items).all()
        assert first.user_labels == second.user_labels
        assert first.catalogue.items == second.catalogue.items
        assert len(set(first.catalogue.items)) == first.n_items == len(first) <= 100
        assert (first.values != second.values).sum() == 1
        assert (specification.epsilon_of(first) == specification.epsilon_of(second)).all()
        (pair,) = recommender.worst_neighbours(specification, "add_or_remove", scale)
        (first,), (second,) = pair.histories(specification, scale)
        assert first.catalogue.items == second.catalogue.items
        assert len(first) == len(second) + 1
        assert (first.values[:-1] == second.values).all()


def test_the_rating_that_differs_may_be_sampled_out_and_the_others_hardly() -> None:
    (pair,) = PDPPMF().worst_neighbours(POLICY, "replace_value", STARS)
    (ratings,), _ = pair.histories(POLICY, STARS)
    *beside, differs = keeping_probability(POLICY.epsilon_of(ratings), POLICY.mean_epsilon)
    assert min(beside) == 1
    assert 0.4 < differs < 0.5
    assert POLICY.epsilon_of(ratings)[-1] < Policy().epsilon_moderate


@pytest.mark.parametrize(
    ("recommender", "specification", "relation", "n_runs"),
    [
        pytest.param(DPPMF(), ONE, "add_or_remove", 200, id="exact-added"),
        pytest.param(DPPMF(), ONE, "replace_value", 200, id="exact-changed"),
        pytest.param(DPPMF(), ONE.model_copy(update={"epsilon": 0.1}), "replace_value", 200, id="exact-little"),
        pytest.param(PDPPMF(), POLICY, "replace_value", 400, id="sampled"),
        pytest.param(DPPMF(solver="alg2"), ONE, "replace_value", 160, id="alg2", marks=pytest.mark.slow),
        pytest.param(PDPPMF(solver="alg2"), POLICY, "replace_value", 320, id="alg2-sampled", marks=pytest.mark.slow),
    ],
)
def test_a_few_hundred_runs_contradict_the_claim(
    recommender: ObjectivePerturbation, specification: PrivacySpecification, relation: Relation, n_runs: int
) -> None:
    shown, claimed = shown_and_claimed(recommender, specification, relation, n_runs)
    assert shown > claimed


@pytest.mark.usefixtures("constant_U")
def test_with_U_constant_the_same_runs_contradict_nothing() -> None:
    """The control: what the audit finds is the U that moves, and it does not find it where U stays."""
    for n_runs in (200, 2000):
        shown, claimed = shown_and_claimed(DPPMF(), ONE, "replace_value", n_runs, confidence=0.9999)
        assert shown <= claimed


@pytest.mark.usefixtures("constant_U")
def test_with_U_constant_most_of_the_claim_is_shown_where_noise_has_one_direction() -> None:
    """The control is not blind: with one factor the K-norm's noise is Laplace's, and the bound is nearly reached."""
    shown, claimed = shown_and_claimed(DPPMF(n_factors=1), ONE, "replace_value", 4000, confidence=0.9999)
    assert 0.5 < shown <= claimed


@pytest.mark.usefixtures("constant_U")
def test_with_U_constant_an_added_rating_is_shown_all_the_same() -> None:
    """The theorem says nothing about it: A_j changes as well."""
    shown, claimed = shown_and_claimed(DPPMF(), ONE, "add_or_remove", 200)
    assert shown > claimed
