from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from models.batch import BatchKind, Moves, Record, catalogue_after, next_batch, withdrawal
from models.errors import SpecError
from models.evaluation import deal_ratings
from models.factorization.pmf import PMF
from models.histogram.pdp_histogram import PDPHistogram, laplace_scale
from models.privacy.keyed_hash import label_hashes
from models.privacy.noise import NoiseSource, SeededNoise, Steps
from models.privacy.specification import Policy, Preferences, PrivacySpecification
from models.ratings import Catalogue, Ratings, RatingScale
from models.release import Release
from tests.made_up import made_up_ratings, ratings_of
from tests.models.contract import UNIFORM
from tests.recorder import Recorder

POLICY = PrivacySpecification(policy=Policy())
KEY = bytes(32)
NOTHING = Record(
    *(
        np.zeros(0, kind)
        for kind in (np.uint64, np.uint64, np.int64, np.int64, np.bool_, np.uint64, np.uint64, np.bool_)
    )
)


def hashes(kind: str, labels: Sequence[str]) -> Any:
    return label_hashes(KEY, kind, labels)


class History:
    """Batches of one source, as one run after the other makes them; `given`: what noise was added to, and its scale."""

    def __init__(self, recommender: PDPHistogram | None = None, noise: Callable[[], NoiseSource] = Recorder) -> None:
        self.recommender, self.noise = recommender or PDPHistogram(), noise
        self.record, self.before = NOTHING, None
        self.given: list[tuple[Steps, float]] = []

    def release(
        self, table: Ratings, specification: PrivacySpecification, kind: BatchKind = "fresh", *, fails: bool = False
    ) -> Ratings:
        items = hashes("item", catalogue_after(table.catalogue, self.before).items)
        users = hashes("user", table.user_labels)
        batch = next_batch(table, users, items, self.record, self.before, kind)
        self._release(batch, users, items, specification, fails)
        return batch

    def withdraw(self, user: str, specification: PrivacySpecification) -> Ratings:
        assert self.before is not None
        (code,), items = hashes("user", [user]), hashes("item", self.before.items)
        catalogue = self.recommender.catalogue_of(self.before)
        batch = withdrawal(code, user, items, catalogue, self.record, self.before)
        self._release(batch, hashes("user", [user]), items, specification, fails=False)
        self.record = replace(self.record, left=np.append(self.record.left, code))
        return batch

    def _release(self, batch: Ratings, users: Any, items: Any, specification: Any, fails: bool) -> None:
        moves = self.recommender.moves(batch, specification)
        noise = self.noise()
        fitted = self.recommender.fit(batch, specification, noise)
        if isinstance(noise, Recorder):
            ((_, values, scale),) = noise.given
            self.given.append((values, scale))
        self.record = recorded(self.record, moves, users, items, is_published=not fails)
        if not fails:
            catalogue = batch.catalogue
            self.before = Release(
                fitted.factors, catalogue.items, catalogue.titles, *fitted.scale, statistics=fitted.statistics
            )

    @property
    def histogram(self) -> Steps:
        assert self.before is not None
        return self.before.statistics["histogram"]


def recorded(record: Record, moves: Moves, users: Any, items: Any, *, is_published: bool) -> Record:
    more = users[moves.users], items[moves.items], moves.levels, moves.steps, np.full(len(moves.steps), is_published)
    columns = (record.users, record.items, record.levels, record.steps, record.is_published)
    return Record(
        *(np.concatenate(pair) for pair in zip(columns, more, strict=True)),
        record.left,
        record.taken_out,
        record.is_out,
    )


def growing_tables(n_batches: int = 4, seed: int = 3) -> list[Ratings]:
    """What a table of ratings holds night after night: all that came so far, some of it changed, some gone."""
    rng = np.random.default_rng(seed)
    whole = made_up_ratings(n_users=40, per_user=15)
    arrives, leaves = rng.integers(0, n_batches, len(whole)), rng.integers(1, 3 * n_batches, len(whole))
    tables = []
    for night in range(n_batches):
        changes = rng.random(len(whole)) < 0.1 * (night > 0)
        values = np.where(changes, rng.integers(1, 6, len(whole)), whole.values).astype(np.float32)
        whole = replace(whole, values=values)
        tables.append(whole.where((arrives <= night) & (leaves > night)))
    return tables


def loss(one: History, two: History) -> Fraction:
    """The most that the outputs of two histories can tell them apart: basic composition, in exact fractions."""
    total = Fraction(0)
    for (values, scale), (others, same_scale) in zip(one.given, two.given, strict=True):
        assert scale == same_scale
        total += Fraction(int(np.abs(values - others).sum())) / Fraction(scale)
    return total


def history_of(
    tables: list[Ratings], specification: PrivacySpecification, kind: BatchKind, recommender: Any
) -> History:
    history = History(recommender)
    for table in tables:
        history.release(table, specification, kind)
    return history


@pytest.mark.parametrize("threshold", ["max", "mean"])
@pytest.mark.parametrize("specification", [UNIFORM, POLICY])
@pytest.mark.parametrize(("kind", "at_most"), [("fresh", 1), ("corrected", None)])
def test_leaving_a_rating_out_of_all_batches_costs_its_epsilon_once_and_twice_more_per_correction(
    kind: BatchKind, at_most: int | None, specification: PrivacySpecification, threshold: Any
) -> None:
    tables, recommender = growing_tables(), PDPHistogram(threshold=threshold)
    whole = history_of(tables, specification, kind, recommender)
    everything = made_up_ratings(n_users=40, per_user=15)
    promised = recommender.promise(specification).epsilon
    assert promised is not None
    epsilons = np.minimum(specification.epsilon_of(everything), promised)
    shares, most_corrections = [], 0
    for left_out in range(0, len(everything), 23):
        user, item, epsilon = everything.users[left_out], everything.items[left_out], Fraction(epsilons[left_out])
        is_it = [(table.users == user) & (table.items == item) for table in tables]
        seen = [float(table.values[mask][0]) for table, mask in zip(tables, is_it, strict=True) if mask.any()]
        corrections = sum(one != next_ for one, next_ in pairwise(seen))
        without = [table.where(~mask) for table, mask in zip(tables, is_it, strict=True)]
        cost = loss(whole, history_of(without, specification, kind, recommender)) / epsilon
        assert cost <= (at_most or 1 + 2 * corrections)
        shares.append(float(cost) / (at_most or 1 + 2 * corrections))
        most_corrections = max(most_corrections, corrections)
    assert max(shares) > 0.99  # reached
    assert most_corrections > 0


def test_a_rating_that_was_corrected_once_costs_three_epsilon_and_no_more() -> None:
    table = ratings_of([0, 1], [0, 1], [5, 3], n_users=2, n_items=3)
    changed = ratings_of([0, 1], [0, 1], [1, 3], n_users=2, n_items=3)
    with_it, without = History(), History()
    for one in (table, changed, changed):
        with_it.release(one, UNIFORM, "corrected")
        without.release(one.where(np.array([False, True])), UNIFORM, "corrected")
    assert 3 * (1 - 1e-12) < loss(with_it, without) <= 3


@pytest.mark.parametrize("specification", [UNIFORM, POLICY])
def test_without_noise_the_batches_add_up_to_the_histogram_of_all(specification: PrivacySpecification) -> None:
    whole = made_up_ratings()
    history = History()
    for night in range(1, 6):
        history.release(whole.where(np.arange(len(whole)) % 5 < night), specification)
    alone = Recorder()
    PDPHistogram().fit(whole, specification, alone)
    assert np.array_equal(history.histogram, alone.given[0][1])


def test_corrections_leave_the_histogram_of_the_ratings_as_they_are_now() -> None:
    tables, history = growing_tables(), History()
    for table in tables:
        history.release(table, UNIFORM, "corrected")
    latest: dict[tuple[int, int], float] = {}
    for table in tables:
        pairs = zip(table.users.tolist(), table.items.tolist(), strict=True)
        latest |= dict(zip(pairs, table.values.tolist(), strict=True))
    users, items = np.array(list(latest)).T
    now = ratings_of(users, items, list(latest.values()), n_users=40, n_items=60)
    alone = Recorder()
    PDPHistogram().fit(now, UNIFORM, alone)
    assert np.array_equal(history.histogram, alone.given[0][1])


def test_without_corrections_a_changed_rating_stays_as_it_was_released() -> None:
    history = History()
    history.release(ratings_of([0], [0], [5], n_users=1, n_items=2), UNIFORM)
    history.release(ratings_of([0], [0], [1], n_users=1, n_items=2), UNIFORM)
    assert np.count_nonzero(history.given[1][0]) == 0
    assert np.flatnonzero(history.histogram).tolist() == [4]


def test_new_items_join_and_items_that_are_gone_stay() -> None:
    history = History()
    first = Catalogue.of_items(["a", "b"], public=True)
    second = Catalogue.of_items(["c", "b"], public=True)
    ratings = ratings_of([0, 1], [0, 1], [5, 4], n_users=2, n_items=2)
    history.release(replace(ratings, catalogue=first), UNIFORM)
    history.release(replace(ratings, catalogue=second), UNIFORM)
    assert history.before is not None
    assert history.before.items == ("c", "b", "a")
    level = {item: np.flatnonzero(row).tolist() for item, row in zip(("c", "b", "a"), history.histogram, strict=True)}
    assert level == {"a": [4], "b": [3], "c": [4]}
    assert history.before.statistics["cell_variance"].tolist() == [2, 4, 4]


def test_a_newer_item_has_less_noise_behind_it_and_is_shrunk_less() -> None:
    histogram = np.array([[0, 0, 0, 0, 30], [0, 0, 0, 0, 30], [300, 0, 0, 0, 0]])
    ratings = ratings_of([], [], [], n_users=0, n_items=3)
    variance = np.array([2.0, 20.0, 2.0])
    offset = PDPHistogram()._factors(histogram, variance, 1.0, ratings.scale, ratings.catalogue.features).offset
    assert offset[0] > offset[1] + 0.1


def test_a_batch_that_failed_is_no_part_of_the_histogram_and_its_ratings_have_had_their_turn() -> None:
    whole, history = made_up_ratings(), History()
    first = np.arange(len(whole)) < 500
    history.release(whole.where(first), UNIFORM)
    history.release(whole.where(np.arange(len(whole)) < 1000), UNIFORM, fails=True)
    history.release(whole.where(np.arange(len(whole)) < 1000), UNIFORM)
    assert np.count_nonzero(history.given[2][0]) == 0
    assert np.array_equal(history.histogram, history.given[0][0])


def test_who_withdrew_is_out_of_the_histogram_and_of_every_later_batch() -> None:
    whole, history, without = made_up_ratings(), History(), History()
    others = whole.where(whole.users != 7)
    half = np.arange(len(whole)) % 2 == 0
    history.release(whole.where(half), POLICY)
    history.withdraw("user-7", POLICY)
    batch = history.release(whole, POLICY)
    assert 7 not in batch.users
    for table in (others.where((np.arange(len(whole)) % 2 == 0)[whole.users != 7]), others):
        without.release(table, POLICY)
    assert np.array_equal(history.histogram, without.histogram)


@pytest.mark.parametrize(
    "specification", [UNIFORM, POLICY, PrivacySpecification(preferences=Preferences(default=0.5, cap=1))]
)
def test_a_withdrawal_costs_each_rating_at_most_what_entering_did(specification: PrivacySpecification) -> None:
    whole, history = made_up_ratings(), History()
    asked = np.linspace(0.1, 1, len(whole)) if specification.preferences else None
    whole = replace(whole, own_epsilon=asked)
    history.release(whole, specification)
    batch = history.withdraw("user-3", specification)
    values, scale = history.given[-1]
    assert scale == laplace_scale(1.0)
    own = whole.where(whole.users == 3)
    for item, epsilon in zip(own.items, specification.epsilon_of(own), strict=True):
        assert Fraction(int(np.abs(values[item]).sum())) / Fraction(scale) <= Fraction(epsilon)
    assert (values <= 0).all()
    assert len(batch) == len(own)


def test_a_withdrawal_is_fitted_with_the_features_of_the_release_before() -> None:
    whole, history = made_up_ratings(), History()
    history.release(whole, UNIFORM)
    assert history.before is not None
    assert np.array_equal(PDPHistogram().catalogue_of(history.before).features, whole.catalogue.features)


@pytest.mark.parametrize(("claimed", "fits"), [(1.0, True), (0.85, False), (1.18, False)])
@pytest.mark.parametrize("kind", ["fresh", "corrected"])
def test_every_batch_adds_noise_of_the_claimed_scale_even_when_nothing_is_new(
    claimed: float, fits: bool, kind: BatchKind
) -> None:
    """What the second release adds to the first, as whoever holds both can compute it."""
    ratings = ratings_of([0], [0], [3], n_users=1, n_items=400)
    history = History(noise=lambda: SeededNoise(5))
    history.release(ratings, UNIFORM, kind)
    first = history.histogram
    history.release(ratings, UNIFORM, kind)
    ratio = np.abs(history.histogram - first).mean() / 1024 * claimed
    assert (abs(ratio - 1) < 4 / np.sqrt(first.size)) == fits


@pytest.mark.parametrize(("claimed", "fits"), [(1.0, True), (0.85, False), (1.18, False)])
def test_a_withdrawal_adds_noise_of_the_claimed_scale(claimed: float, fits: bool) -> None:
    """Of all items but the one that was taken out."""
    history = History(noise=lambda: SeededNoise(6))
    history.release(ratings_of([0], [0], [3], n_users=1, n_items=400), UNIFORM)
    first = history.histogram
    history.withdraw("user-0", UNIFORM)
    ratio = np.abs(history.histogram - first)[1:].mean() / 1024 * claimed
    assert (abs(ratio - 1) < 4 / np.sqrt(first.size)) == fits


def test_only_what_is_new_is_dealt_into_folds_and_the_rest_is_for_folding_in() -> None:
    whole, history = made_up_ratings(), History()
    history.release(whole.where(np.arange(len(whole)) < 2000), UNIFORM)
    batch = history.release(whole, UNIFORM)
    folds = deal_ratings(batch, 3)
    assert (folds[:2000] == -1).all()
    assert np.bincount(folds[2000:]).tolist() == [334, 333, 333]


def test_another_scale_is_refused() -> None:
    history = History()
    history.release(made_up_ratings(), UNIFORM)
    with pytest.raises(SpecError, match=r"on the scale 1:5:1.*declared on 0.5:5:0.5"):
        history.release(made_up_ratings(scale=RatingScale(low=0.5, high=5, step=0.5)), UNIFORM)


@pytest.mark.parametrize(
    ("recommender", "specification", "reason"),
    [
        (PDPHistogram(), PrivacySpecification(epsilon=1, unit="user"), "Ask for unit rating"),
        (PDPHistogram(threshold=2), UNIFORM, "Lower the threshold"),
        (PMF(), UNIFORM, "cannot be released in batches"),
    ],
)
def test_what_cannot_be_a_batch_is_refused_before_a_rating_is_read(
    recommender: Any, specification: PrivacySpecification, reason: str
) -> None:
    with pytest.raises(SpecError, match=reason):
        recommender.guarantee(specification, public_catalogue=True, batch="fresh")


def test_a_batch_promises_epsilon_once_and_says_what_a_correction_costs() -> None:
    promises = {
        kind: PDPHistogram().guarantee(UNIFORM, public_catalogue=True, batch=kind)
        for kind in ("fresh", "corrected", "withdrawal")
    }
    assert {kind: promise.epsilon for kind, promise in promises.items()} == {
        "fresh": 1,
        "corrected": 2,
        "withdrawal": 1,
    }
    assert {promise.verdict for promise in promises.values()} == {"proven"}
    assert "pays once" in promises["fresh"].sentence
    assert "costs that rating epsilon 2 more" in promises["corrected"].sentence


def test_hashes_tell_users_from_items_and_need_the_key() -> None:
    assert hashes("user", ["1"])[0] != hashes("item", ["1"])[0]
    assert hashes("user", ["1"])[0] != label_hashes(b"\1" * 32, "user", ["1"])[0]
