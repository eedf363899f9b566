from __future__ import annotations

import shutil
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from models.errors import EnvironmentFault, Refused, SpecError
from models.histogram.pdp_histogram import PDPHistogram
from models.planning import ACTIVITY, USER_SHARE, foretell
from models.privacy.budget import Budget
from models.privacy.noise import ExactNoise
from models.privacy.specification import Policy, PrivacySpecification
from models.ratings import RatingScale
from models.release import Release
from tasks import planning
from tasks.ledger import Ledger
from tasks.planning import left_of_budget, plan_from_release, plan_from_sample, sample_histogram
from tasks.released import newest_release
from tasks.sample import read_sample
from tasks.state import State
from tests.made_up import made_up_ratings

EPSILONS = (0.1, 1.0)


def released(monkeypatch: pytest.MonkeyPatch, recommender: PDPHistogram | None = None, **privacy: Any) -> Release:
    """A release of made-up ratings, which the registry seems to hold."""
    specification = PrivacySpecification(**(privacy or {"epsilon": 1}))
    chosen = recommender or PDPHistogram()
    release = chosen.fit(made_up_ratings(n_users=400, n_items=200, per_user=100), specification, ExactNoise()).release
    hold(monkeypatch, release)
    return release


def hold(monkeypatch: pytest.MonkeyPatch, release: Release) -> None:
    monkeypatch.setattr(planning, "newest_release", lambda source, recommender: ("7", release))


def test_a_plan_takes_the_scale_the_items_and_the_settings_of_the_release(monkeypatch: pytest.MonkeyPatch) -> None:
    recommender = PDPHistogram(rating_variance=2.0, threshold=0.5)
    release = released(monkeypatch, recommender)
    asked = {}

    def listen(histogram, epsilons, **told):
        asked.update(told)
        return foretell(histogram, epsilons, repetitions=2, **told)

    monkeypatch.setattr(planning, "foretell", listen)
    made = plan_from_release("films", EPSILONS, None)
    assert made.basis == "the noisy histogram of version 7, which was paid for"
    assert (made.plan.n_items, str(made.plan.scale)) == (200, "1:5:1")
    assert made.plan.n_ratings == round(release.statistics["histogram"].sum() / 2**10)
    assert made.plan.n_users == made.plan.n_ratings // 100
    assert asked["recommender"] == PDPHistogram(rating_variance=2.0, item_features=False)
    assert asked["user_share"] == USER_SHARE[True]
    released(monkeypatch, PDPHistogram(item_features=False))
    plan_from_release("films", EPSILONS, 300)
    assert (asked["user_share"], asked["n_users"]) == (USER_SHARE[False], 300)


def test_a_personalised_release_counts_its_ratings_by_their_mean_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    released(monkeypatch, policy=Policy())
    assert plan_from_release("films", EPSILONS, 400).plan.n_ratings == pytest.approx(40_000, rel=0.02)


def test_a_release_that_is_mostly_noise_itself_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    released(monkeypatch, epsilon=1)
    assert plan_from_release("films", EPSILONS, None).warning == ""
    released(monkeypatch, epsilon=0.01)
    assert "Most of that release is noise" in plan_from_release("films", EPSILONS, 1).warning


def test_what_cannot_be_planned_from_is_refused_with_a_way_on(monkeypatch: pytest.MonkeyPatch, state: State) -> None:
    with pytest.raises(SpecError, match="films has no release to plan from; declare how many users and items"):
        plan_from_release("films", EPSILONS, None)
    assert not state.tracking_database.exists()  # looking for it made nothing
    release = released(monkeypatch)
    with pytest.raises(SpecError, match="more than there are ratings"):
        plan_from_release("films", EPSILONS, 10**9)
    hold(monkeypatch, replace(release, statistics={}))
    with pytest.raises(
        Refused, match=r"version 7 of films.pdp-histogram comes from an older Jali .* --users N --items"
    ):
        plan_from_release("films", EPSILONS, None)
    released(monkeypatch, epsilon=1, unit="user")
    with pytest.raises(Refused, match=r"protects users.* --users N --items M"):
        plan_from_release("films", EPSILONS, None)


def test_the_sample_is_scaled_to_what_is_declared() -> None:
    plan = plan_from_sample(EPSILONS, 200, 500, RatingScale(low=1, high=5)).plan
    assert (plan.n_users, plan.n_items, str(plan.scale)) == (200, 500, "1:5:1")
    assert plan.foretold[0].loss > plan.foretold[1].loss > 0


def test_a_plan_says_what_each_epsilon_leaves_of_the_budget(state: State) -> None:
    assert left_of_budget("films", EPSILONS) is None
    assert not state.ledger_key_file.exists()  # looking made no ledger
    ledger = Ledger(state)
    assert left_of_budget("films", EPSILONS) is None
    ledger.set_budget("films", Budget(epsilon=1))
    ledger.reserve([[planning.charge_of("films", 0.25)]])
    assert left_of_budget("films", EPSILONS) == [pytest.approx(0.65), None]
    ledger.set_budget("shared", Budget(epsilon=1, unit="user"))
    assert left_of_budget("shared", EPSILONS) is None


def test_the_constants_are_those_of_the_sample() -> None:
    _, table, _ = read_sample()
    counts = np.sort(np.bincount(table.users))
    twentieths = np.array([part.mean() for part in np.array_split(counts, 20)])
    assert pytest.approx(twentieths / twentieths.mean(), abs=6e-4) == ACTIVITY
    histogram, n_users = sample_histogram()
    for share, measured in ((USER_SHARE[False], 0.8771), (USER_SHARE[True], 0.8603)):  # ten-fold, epsilon 1000
        plan = foretell(
            histogram,
            (1.0,),
            n_ratings=histogram.n_ratings,
            n_users=n_users,
            user_share=share,
            recommender=PDPHistogram(item_features=False),
            repetitions=6,
        )
        assert plan.without_noise.rmse == pytest.approx(measured, abs=0.012)


@pytest.mark.slow
def test_the_newest_version_is_read_back_and_nothing_is_recorded(ratings, state: State, monkeypatch) -> None:
    from tasks.tracking import open_tracking
    from tests.tasks.test_tracking_and_publishing import candidate, published

    for _ in range(2):
        published(candidate(), ratings, state)
    client = open_tracking(state)
    before = len(client.search_runs([e.experiment_id for e in client.search_experiments()]))
    ledger = (state.folder / "ledger.db").read_bytes()
    found = newest_release("films", "pdp-histogram")
    assert found is not None
    number, release = found
    assert (number, release.items) == ("2", ratings.catalogue.items)
    assert release.statistics["histogram"].shape == (60, 5)
    assert newest_release("films", "dp-pmf") is None
    plan_from_release("films", EPSILONS, None)
    assert len(client.search_runs([e.experiment_id for e in client.search_experiments()])) == before
    assert (state.folder / "ledger.db").read_bytes() == ledger

    for file in state.artifacts.rglob("release.json"):
        file.write_text("{}")
    with pytest.raises(EnvironmentFault, match=r"version 2 of films.pdp-histogram: .* could not be read as a release"):
        newest_release("films", "pdp-histogram")
    for file in list(state.artifacts.rglob("release.json")):
        shutil.rmtree(file.parent)
    with pytest.raises(EnvironmentFault, match=r"version 2 of films.pdp-histogram: MLflow does not find its files"):
        newest_release("films", "pdp-histogram")
