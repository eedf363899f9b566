"""What every recommender must keep. A new one inherits this suite and adds what is its own."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import NonPrivateDpEvent
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant
from pydantic import ValidationError

from models.audit.audit import audit
from models.errors import NotReleasable, SpecError
from models.evaluation import client_scores, deal_ratings
from models.index import RECOMMENDERS
from models.privacy.guarantee import shared_conditions
from models.privacy.noise import ExactNoise, SeededNoise
from models.privacy.specification import Policy, PrivacySpecification
from models.ratings import Ratings
from models.recommender import Recommender
from models.release import Release
from tests.made_up import made_up_ratings, ratings_of

UNIFORM = PrivacySpecification(epsilon=1)


class RecommenderContract:
    """Subclasses set `recommender`, and the specifications it can keep where these are others."""

    recommender: Recommender

    @property
    def specifications(self) -> tuple[PrivacySpecification, ...]:
        relation = self.recommender.relation
        return self.uniform(), PrivacySpecification(policy=Policy(), relation=relation)

    def uniform(self, epsilon: float = 1.0) -> PrivacySpecification:
        return PrivacySpecification(epsilon=epsilon, relation=self.recommender.relation)

    @property
    def is_private(self) -> bool:
        return self.recommender.promise(self.uniform()).verdict != "none"

    def test_it_is_in_the_index(self) -> None:
        assert RECOMMENDERS[self.recommender.name] is type(self.recommender)

    def test_every_setting_is_described_and_frozen(self) -> None:
        assert all(field.description for field in type(self.recommender).model_fields.values())
        with pytest.raises(ValidationError):
            type(self.recommender)(no_such_setting=1)
        with pytest.raises(ValidationError):
            self.recommender.anything = 1  # type: ignore[attr-defined]

    def test_cost_and_promise_agree(self) -> None:
        for specification in self.specifications:
            promise, event = self.recommender.promise(specification), self.recommender.cost(specification)
            if promise.verdict != "proven":
                assert event == NonPrivateDpEvent()
                continue
            assert promise.epsilon is not None
            spent = PLDAccountant().compose(event).get_epsilon(promise.delta)
            assert spent <= promise.epsilon * 1.001 + 1e-4  # the accountant rounds upwards on its grid
            assert spent >= promise.epsilon * 0.97

    def test_a_promise_says_everything(self) -> None:
        for specification in self.specifications:
            promise = self.recommender.promise(specification)
            assert promise.sentence.endswith(".")
            assert promise.reference
            if self.is_private:
                assert promise.unit == specification.unit
                assert promise.relation == specification.relation
                assert set(shared_conditions(specification)) <= set(promise.conditions)
                assert set(promise.weaknesses) <= set(promise.conditions)
                assert bool(promise.weaknesses) == (promise.verdict != "proven")
                assert promise.epsilon is not None
                assert 0 < promise.epsilon <= specification.largest_epsilon

    def test_a_catalogue_taken_from_the_ratings_weakens_the_promise(self) -> None:
        promise = self.recommender.guarantee(self.uniform(), public_catalogue=False)
        assert promise.verdict in ("conditional", "broken", "none")
        assert promise.proven_epsilon is None
        assert "catalogue" in promise.conditions[-1]
        assert len(promise.weaknesses) == 1 + len(self.recommender.promise(self.uniform()).weaknesses)

    def test_a_relation_it_cannot_keep_is_refused(self) -> None:
        if self.is_private:
            for relation in {"add_or_remove", "replace_value", "local"} - {self.recommender.relation}:
                other = PrivacySpecification(epsilon=1, relation=relation)
                for method in (self.recommender.cost, self.recommender.promise):
                    with pytest.raises(SpecError, match=self.recommender.name):
                        method(other)

    def test_V_has_a_row_for_every_item_of_the_catalogue_rated_or_not(self, ratings: Ratings) -> None:
        for specification in self.specifications:
            factors = self.recommender.fit(ratings, specification, SeededNoise(0)).factors
            assert factors.V.shape == (ratings.n_items, len(factors.precision))
            assert factors.V.dtype == factors.offset.dtype == np.float32
            assert np.isfinite(factors.V).all()
            assert ((factors.offset >= ratings.scale.low) & (factors.offset <= ratings.scale.high)).all()

    @pytest.mark.slow
    def test_an_audit_does_not_contradict_what_is_proven(self) -> None:
        for specification in self.specifications:
            if self.recommender.promise(specification).verdict == "proven":
                found = audit(self.recommender, specification, n_runs=1000, noise=SeededNoise(1), confidence=0.9999)
                assert not found.exceeded, f"{found.share:.0%} for {found.neighbours.what}"

    def test_the_noise_source_is_the_only_chance(self, ratings: Ratings) -> None:
        specification = self.uniform()
        first, again, other = (
            self.recommender.fit(ratings, specification, SeededNoise(seed)).factors for seed in (1, 1, 2)
        )
        assert (first.V == again.V).all()
        assert ((first.V == other.V).all() and (first.offset == other.offset).all()) != self.is_private

    def test_threads_change_only_the_time(self, ratings: Ratings) -> None:
        one = self.recommender.fit(ratings, self.uniform(), SeededNoise(1)).factors
        two = self.recommender.fit(ratings, self.uniform(), SeededNoise(1), n_threads=2).factors
        assert np.allclose(one.V, two.V)

    @pytest.mark.parametrize("n", [0, 1, 2])
    def test_few_ratings_are_no_trouble(self, n: int) -> None:
        ratings = ratings_of([0] * n, range(n), [3.0] * n, n_users=1, n_items=4)
        for specification in self.specifications:
            factors = self.recommender.fit(ratings, specification, SeededNoise(0)).factors
            assert np.isfinite(factors.V).all()

    @pytest.mark.parametrize("epsilon", [1e-6, 1e3])
    def test_huge_noise_and_hardly_any_are_no_trouble(self, ratings: Ratings, epsilon: float) -> None:
        fitted = self.recommender.fit(ratings, self.uniform(epsilon), SeededNoise(0))
        scores = client_scores(fitted, ratings, ratings)
        assert scores is not None
        assert 0 < scores.rmse < 2.5

    def test_half_stars_work_like_whole_ones(self) -> None:
        from models.ratings import RatingScale

        ratings = made_up_ratings(scale=RatingScale(low=0.5, high=5, step=0.5))
        scores = client_scores(self.recommender.fit(ratings, self.uniform(), SeededNoise(0)), ratings, ratings)
        assert scores is not None
        assert scores.rmse < np.std(ratings.values)

    def test_it_predicts_better_than_the_mean(self, ratings: Ratings) -> None:
        is_test = deal_ratings(ratings, 5) == 0
        train, test = ratings.where(~is_test), ratings.where(is_test)
        scores = client_scores(self.recommender.fit(train, self.uniform(20), SeededNoise(0)), train, test)
        assert scores is not None
        assert scores.rmse < 0.95 * np.std(test.values)

    def test_what_was_fitted_is_not_pickled_and_not_shown(self, ratings: Ratings) -> None:
        fitted = self.recommender.fit(ratings, self.uniform(), SeededNoise(0))
        with pytest.raises(NotReleasable):
            pickle.dumps(fitted)
        assert repr(fitted) == f"<fitted {self.recommender.name}>"

    def test_seeded_noise_has_no_release(self, ratings: Ratings) -> None:
        with pytest.raises(NotReleasable, match="ExactNoise"):
            _ = self.recommender.fit(ratings, self.uniform(), SeededNoise(0)).release  # type: ignore[misc]

    def test_a_release_predicts_as_the_fit_did_and_names_no_user(self, ratings: Ratings, tmp_path: Path) -> None:
        fitted = self.recommender.fit(ratings, self.uniform(), ExactNoise())
        if not self.is_private:
            with pytest.raises(NotReleasable, match="never published"):
                _ = fitted.release
            return
        fitted.release.save(tmp_path)
        release = Release.load(tmp_path)
        own = ratings.by_user
        first = slice(0, own.start[1])
        u = fitted.factors.fold_in(own.start[:2], own.other[first], own.values[first])
        items = np.arange(ratings.n_items)
        inside = fitted.factors.predict(u, np.zeros_like(items), items, low=1, high=5)
        names = ratings.catalogue.items
        mine = {names[item]: float(value) for item, value in zip(own.other[first], own.values[first], strict=True)}
        assert np.allclose(release.predict(mine, list(names)), inside, atol=1e-5)
        text = (tmp_path / "release.json").read_text()
        document = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
        assert "user-" not in text
        assert document["about"]["recommender"] == self.recommender.name
        assert document["about"]["guarantee"]["verdict"] == self.recommender.promise(self.uniform()).verdict
        assert math.isclose(document["scale"]["high"], 5)
