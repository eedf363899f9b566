from __future__ import annotations

import json

import pytest

from models.index import RECOMMENDERS
from models.privacy.guarantee import Guarantee
from models.privacy.specification import Policy, Preferences, PrivacySpecification
from models.recommender import Recommender

PERSONALISED = {
    "a policy": {"policy": Policy()},
    "preferences": {"preferences": Preferences(default=0.2, levels={"low": 0.1, "high": 2})},
}


def promise_of(kind: type[Recommender], **told: object) -> Guarantee:
    return kind().promise(PrivacySpecification(relation=kind.relation, **told))


@pytest.mark.parametrize("told", PERSONALISED.values(), ids=PERSONALISED)
@pytest.mark.parametrize("name", ["pdp-histogram", "pdp-pmf"])
def test_a_personalised_promise_names_its_levels_within_what_it_charges(name: str, told: dict[str, object]) -> None:
    promise = promise_of(RECOMMENDERS[name], **told)
    bounds = [bound for level in promise.levels for bound in (level.low, level.high)]
    assert (min(bounds), max(bounds)) == (promise.least_epsilon, promise.epsilon)
    assert Guarantee.model_validate(json.loads(promise.model_dump_json())) == promise


@pytest.mark.parametrize("kind", RECOMMENDERS.values(), ids=RECOMMENDERS)
def test_a_promise_of_one_epsilon_has_no_levels(kind: type[Recommender]) -> None:
    assert promise_of(kind, epsilon=1).levels == ()
    assert promise_of(RECOMMENDERS["dp-pmf"], policy=Policy()).levels == ()  # all have the least


def test_users_who_chose_have_levels_too() -> None:
    preferences = PERSONALISED["preferences"]
    promise = promise_of(RECOMMENDERS["pdp-histogram"], unit="user", **preferences)
    assert promise.declared_levels == "low ε=0.1; high ε=2; not asked ε=0.2"


def test_very_many_levels_with_very_long_names_are_cut_short() -> None:
    many = Preferences(default=0.2, levels={f"{n}{'x' * 10_000}": 0.1 + n / 100 for n in range(100)})
    promise = promise_of(RECOMMENDERS["pdp-histogram"], preferences=many)
    assert len(promise.levels) == 101
    assert promise.declared_levels.endswith("; and 91 more")
    assert len(promise.declared_levels) < 2000


def test_a_guarantee_that_an_older_jali_stored_has_no_levels() -> None:
    older = promise_of(RECOMMENDERS["pdp-histogram"], policy=Policy()).model_dump(mode="json")
    del older["levels"]
    assert Guarantee.model_validate(older).levels == ()
