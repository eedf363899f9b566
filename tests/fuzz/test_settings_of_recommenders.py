"""Every setting of every recommender at the ends of what it accepts: finite figures, or a sentence."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.errors import SpecError
from models.evaluation import client_scores, deal_ratings
from models.index import RECOMMENDERS, make_recommender
from models.privacy.noise import SeededNoise
from models.privacy.specification import LEAST_EPSILON, MOST_EPSILON, Policy, PrivacySpecification
from models.ratings import RatingScale
from tests.made_up import made_up_ratings

pytestmark = pytest.mark.slow

FLOATS = (
    -1.0,
    0.0,
    5e-324,
    1e-300,
    1e-30,
    1e-9,
    1e-6,
    1e-3,
    0.5,
    1.0,
    100.0,
    1e3,
    1e6,
    1e9,
    1e30,
    1e300,
    1.7e308,
    math.inf,
    math.nan,
)
MOST_WORK = 40
"""Sizes and repetitions are tried up to here: what more of them cost, whoever asks for them pays."""

SPECIFICATIONS = (
    PrivacySpecification(epsilon=1),
    PrivacySpecification(epsilon=LEAST_EPSILON),
    PrivacySpecification(epsilon=MOST_EPSILON),
    PrivacySpecification(epsilon=LEAST_EPSILON, fraction=1e-3),
    PrivacySpecification(policy=Policy()),
    PrivacySpecification(
        policy=Policy(epsilon_conservative=LEAST_EPSILON, epsilon_liberal=MOST_EPSILON), fraction=1e-3
    ),
    PrivacySpecification(policy=Policy(conservative=1, moderate=0), fraction=0.5),
    PrivacySpecification(epsilon=1, unit="user"),
    PrivacySpecification(epsilon=LEAST_EPSILON, unit="user", delta=1e-30),
    PrivacySpecification(epsilon=MOST_EPSILON, unit="user", delta=0.99),
)
SCALES = tuple(RatingScale.parse(text) for text in ("1:5:1", "0.5:5:0.5", "-1000:1000:2", "0:0.001:0.001", "0:1:1"))


def values(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """What a setting may be given, by its JSON schema: ends, beyond the ends, and all of a list."""
    if "anyOf" in schema:
        return st.one_of([values(one) for one in schema["anyOf"]])
    if "enum" in schema or "const" in schema:
        return st.sampled_from(schema.get("enum") or [schema["const"]])
    match schema.get("type"):
        case "boolean":
            return st.booleans()
        case "null":
            return st.none()
        case "integer":
            low = schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
            return st.sampled_from([low, low + 1, min(schema.get("maximum", MOST_WORK), MOST_WORK), low - 1])
        case "number":
            ends = [
                schema[end] for end in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum") if end in schema
            ]
            return st.sampled_from([*ends, 1e-3, 1.0, 100.0]) | st.sampled_from([*FLOATS, *ends])
    return st.sampled_from(["", "x"])


@st.composite
def settings_of(draw: st.DrawFn, name: str) -> dict[str, Any]:
    properties = RECOMMENDERS[name].model_json_schema()["properties"]
    chosen = draw(st.lists(st.sampled_from(sorted(properties)), min_size=1, max_size=3, unique=True))
    return {setting: draw(values(properties[setting])) for setting in chosen}


@pytest.mark.parametrize("name", RECOMMENDERS)
def test_what_is_accepted_gives_finite_figures_and_what_is_not_a_sentence(
    name: str, request: pytest.FixtureRequest
) -> None:
    ended = {"finite": 0, "refused": 0}

    @settings(max_examples=60, derandomize=True, print_blob=True, database=None, deadline=None,
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(settings_of(name), st.sampled_from(SPECIFICATIONS), st.sampled_from(SCALES))
    def try_one(told: dict[str, Any], specification: PrivacySpecification, scale: RatingScale) -> None:
        refusal = None
        specification = specification.model_copy(update={"relation": RECOMMENDERS[name].relation})
        ratings = made_up_ratings(n_users=12, n_items=9, per_user=4, scale=scale)
        is_test = deal_ratings(ratings, 3) == 0
        train = ratings.where(~is_test)
        try:
            recommender = make_recommender(name, told)
            recommender.cost(specification)
            promise = recommender.promise(specification)
            fitted = recommender.fit(train, specification, SeededNoise(0))
        except SpecError as error:
            refusal = str(error)
            assert "diverged" not in refusal or {"learning_rate", "precision", "momentum"} & set(told)
        if refusal is not None:
            assert refusal.endswith(".")
            assert "\n" not in refusal
            ended["refused"] += 1
            return
        assert np.isfinite(fitted.factors.V).all()
        assert np.isfinite(fitted.factors.offset).all()
        scores = client_scores(fitted, train, ratings.where(is_test))
        assert scores is not None
        assert math.isfinite(scores.rmse)
        assert promise.epsilon is None or promise.epsilon <= specification.largest_epsilon
        ended["finite"] += 1

    try_one()
    request.node.user_properties.append(
        ("cases", f"settings of {name}: {ended['finite']} finite, {ended['refused']} refused")
    )
    assert min(ended.values()) > 5
