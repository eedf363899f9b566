"""The audit itself, on laws whose privacy loss is known."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from models.audit.audit import Shown, audit, require_enough, shown_by
from models.audit.bounds import epsilon_bound, gaussian_bound, share_of_error
from models.audit.claim import MOST_RUNS, Claim, claim_of, runs_needed
from models.audit.neighbours import Neighbours, small_hostile
from models.audit.runs import Mechanism, Outputs
from models.audit.statistics import LEARNERS
from models.errors import SpecError
from models.factorization.dp_pmf import DPPMF
from models.factorization.pmf import PMF
from models.histogram.pdp_histogram import PDPHistogram
from models.privacy import noise
from models.privacy.noise import NoiseSource, SeededNoise
from models.privacy.specification import Policy, PrivacySpecification
from models.ratings import Ratings, RatingScale
from models.recommender import Fitted

UNIFORM = PrivacySpecification(epsilon=1)
STARS = RatingScale(low=1, high=5)
SURE = 0.9999


def of(numbers: np.ndarray, items: list[int] | None = None) -> Outputs:
    return Outputs(np.asarray(numbers, float), np.array(items or [0] * numbers.shape[1]))


def laplace(epsilon: float, n: int = 16_000, k: int = 6, seed: int = 1) -> tuple[Outputs, Outputs]:
    """`k` numbers with Laplace noise, of which the third differs by one."""
    rng = np.random.default_rng(seed)
    first, second = (rng.laplace(0, 1 / epsilon, (n, k)) for _ in range(2))
    first[:, 2] += 1
    return of(first), of(second)


def gaussian(mu: float, n: int = 10_000, k: int = 6, seed: int = 1) -> tuple[Outputs, Outputs]:
    """`k` numbers with standard normal noise, moved by mu in L2 along all of them."""
    rng = np.random.default_rng(seed)
    first, second = (rng.normal(0, 1, (n, k)) for _ in range(2))
    return of(first + mu / np.sqrt(k)), of(second)


def shown(claim: Claim, sides: tuple[Outputs, Outputs], confidence: float = SURE) -> Shown:
    return shown_by(claim, *sides, LEARNERS, confidence)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
def test_of_pure_epsilon_nearly_all_is_shown_and_never_more(epsilon: float) -> None:
    assert 0.75 < shown(Claim(epsilon), laplace(epsilon), 0.95).share_of(Claim(epsilon)) <= 1
    assert shown(Claim(epsilon), laplace(epsilon)).share_of(Claim(epsilon)) <= 1


def test_noise_a_fifth_too_small_is_found_out() -> None:
    assert shown(Claim(1.0), laplace(1.25), 0.95).epsilon > 1
    mu = 0.8379  # at epsilon 4; the smaller mu, the more runs it takes
    assert (shown(Claim(4.0, 1e-6, mu), gaussian(1.25 * mu, n=20_000), 0.95).gaussian or 0) > mu


@pytest.mark.parametrize(("mu", "lost"), [(0.2367, 0.15), (1.0, 0.15), (3.0, 0.4)])
def test_of_gaussian_noise_what_the_runs_allow_is_shown_and_never_more(mu: float, lost: float) -> None:
    found = shown(Claim(1.0, 1e-6, mu), gaussian(mu), 0.95)
    assert found.gaussian is not None
    assert mu - lost < found.gaussian <= mu


def test_laplace_noise_is_more_than_its_spread_would_be_of_a_gaussian() -> None:
    """A claim of mu that holds on average and not in the tails is contradicted, too."""
    sides = laplace(2.0, n=40_000)
    assert (shown(Claim(2.0, 1e-6, 2 / np.sqrt(2)), sides).gaussian or 0) > 2 / np.sqrt(2)


def test_where_nothing_differs_nothing_is_shown() -> None:
    rng = np.random.default_rng(2)
    numbers = rng.standard_cauchy((20_000, 8))
    found = shown(Claim(1.0, 1e-6, 1.0), (of(numbers[::2]), of(numbers[1::2])), 0.95)
    assert found.epsilon < 0.05
    assert (found.gaussian or 0) < 0.03
    assert shown(Claim(1.0), (of(np.ones((1000, 2))), of(np.ones((1000, 2))))).epsilon == 0


def test_nothing_can_be_shown_that_was_learned_by_heart() -> None:
    """Forty numbers of pure noise and few runs: whatever the examples seem to say, the other half does not."""
    rng = np.random.default_rng(3)
    over = [
        shown(Claim(1.0), (of(rng.normal(size=(200, 40))), of(rng.normal(size=(200, 40)))), 0.5).epsilon > 0.6
        for _ in range(10)
    ]
    assert not any(over)


def test_an_open_book_shows_all_that_so_many_runs_can() -> None:
    n = 1000
    found = shown(Claim(1.0), (of(np.full((n, 3), 7.0)), of(np.full((n, 3), 8.0))), 0.95)
    least = (0.05 / 2 / len(LEARNERS)) ** (1 / (n // 2))
    assert found.epsilon == pytest.approx(np.log(least / (1 - least)))


def test_a_difference_that_hides_under_shared_noise_is_found() -> None:
    """Two releases with the same noise: each is private by itself, and their difference tells all."""
    rng = np.random.default_rng(4)
    first, second = (np.repeat(rng.laplace(0, 1, (2000, 1)), 2, axis=1) for _ in range(2))
    first[:, 1] += 1
    assert shown(Claim(1.0), (of(first), of(second))).epsilon > 4


def test_a_spread_that_differs_along_one_direction_is_found() -> None:
    """What a sole rater's u does to an item: nothing moves, and one direction of twenty is a hundred times shorter."""
    rng = np.random.default_rng(5)
    direction = rng.normal(size=(2, 20))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    sides = []
    for u in direction:
        noise = rng.normal(size=(2000, 20))
        sides.append(of(noise - 0.99 * (noise @ u)[:, None] * u))
    assert shown(Claim(1.0), (sides[0], sides[1])).epsilon > 3


def test_a_direction_that_is_still_in_every_fifth_run_is_found() -> None:
    """What sampling leaves of it: in most runs nothing differs, and where it does, only ten items together say so."""
    rng = np.random.default_rng(7)
    sides = []
    for direction in np.linalg.qr(rng.normal(size=(20, 2)))[0].T:
        noise = rng.normal(size=(1000, 10, 20))
        still = rng.random(1000) < 0.2
        noise -= 0.99 * still[:, None, None] * (noise @ direction)[:, :, None] * direction
        sides.append(of(noise.reshape(1000, 200), list(np.repeat(range(10), 20))))
    found = shown(Claim(1.0), (sides[0], sides[1]))
    assert found.epsilon > 1
    assert found.statistic == "directions in which nothing moves"


def test_what_is_finer_than_the_noise_is_found() -> None:
    """Noise in whole sixteens, far larger than the difference of five."""
    rng = np.random.default_rng(7)
    first, second = (16 * np.rint(rng.laplace(0, 1000, (2000, 4))) for _ in range(2))
    first[:, 1] += 5
    assert shown(Claim(0.1), (of(first), of(second))).epsilon > 4


def test_noise_of_few_seeds_is_found() -> None:
    """A release that comes again is one of few, whatever it says."""
    rng = np.random.default_rng(6)
    books = rng.normal(size=(2, 50, 12))
    first, second = (books[side][rng.integers(50, size=2000)] for side in range(2))
    found = shown(Claim(1.0), (of(first), of(second)))
    assert found.epsilon > 4


def test_the_curve_is_of_the_testing_half_and_goes_from_corner_to_corner() -> None:
    found = shown(Claim(1.0), laplace(1.0))
    order = np.argsort(found.false_alarms)
    assert found.false_alarms.min() < 0.01
    assert found.false_alarms.max() == 1
    assert (np.diff(found.misses[order]) <= 1e-12).all()
    # No test does better than pure epsilon allows, but for the chance of 5,000 runs.
    assert (1 - found.misses <= np.e * found.false_alarms + 0.05).all()


def test_a_claim_counts_twice_for_a_changed_rating_and_is_ones_own_where_each_has_their_own() -> None:
    pair = Neighbours("", ((1, 0, 2),), ((0, 1, 4),))
    histogram = PDPHistogram()
    assert claim_of(histogram, UNIFORM, "add_or_remove", pair, STARS) == Claim(1.0)
    assert claim_of(histogram, UNIFORM, "replace_value", pair, STARS) == Claim(2.0)
    huge = PrivacySpecification(epsilon=1000)
    assert claim_of(histogram, huge, "replace_value", pair, STARS) == Claim(2000.0)
    users = PrivacySpecification(epsilon=1, unit="user")
    claim = claim_of(histogram, users, "add_or_remove", pair, STARS)
    assert (claim.epsilon, claim.delta) == (1, 1e-6)
    assert claim.gaussian == pytest.approx(0.2367, rel=1e-3)
    policy = PrivacySpecification(policy=Policy())
    (first,), _ = pair.histories(policy, STARS)
    assert claim_of(histogram, policy, "add_or_remove", pair, STARS).epsilon == policy.epsilon_of(first)[-1]
    assert claim_of(DPPMF(), policy.model_copy(update={"relation": "replace_value"}), "replace_value", pair, STARS) == (
        Claim(0.1)
    )


def test_whoever_promises_nothing_is_not_audited() -> None:
    with pytest.raises(SpecError, match="pmf promises no finite epsilon"):
        audit(PMF(), UNIFORM)


def test_neighbours_that_nobody_knows_how_to_make_up_are_refused() -> None:
    with pytest.raises(SpecError, match="a local guarantee is about what each person sends"):
        audit(PDPHistogram(), UNIFORM, relation="local")
    with pytest.raises(SpecError, match="a relation is one of add_or_remove, replace_value, local; found"):
        audit(PDPHistogram(), UNIFORM, relation="replace")  # type: ignore[arg-type]
    pair = next(small_hostile(UNIFORM, "add_or_remove", STARS, batches=True))
    for confidence in (0.5, 1.0, 95.0, float("nan")):
        for given in (None, pair):
            with pytest.raises(SpecError, match=r"confidence is between 0\.5 and 1"):
                audit(PDPHistogram(), UNIFORM, confidence=confidence, pair=given)
    with pytest.raises(SpecError, match="with unit user the relation of an audit is add_or_remove"):
        audit(PDPHistogram(), PrivacySpecification(epsilon=1, unit="user"), relation="replace_value")


@pytest.mark.parametrize("claim", [Claim(0.1), Claim(1.0), Claim(5.0), Claim(1.0, 1e-6), Claim(1.0, 1e-6, 0.2367)])
def test_so_many_runs_contradict_an_open_book_and_one_less_does_not(claim: Claim) -> None:
    error = share_of_error(0.95, 5)
    needed = runs_needed(claim, error)
    assert needed is not None
    assert needed % 4 == 0  # two sides, learning and testing

    def contradicted(n: int) -> bool:
        by_mu = claim.gaussian is not None and gaussian_bound(n, 0, n, error) > claim.gaussian
        return bool(by_mu or epsilon_bound(n, 0, n, error, claim.delta) > claim.epsilon)

    assert contradicted(needed // 4)
    assert not contradicted(needed // 4 - 1)


def test_too_few_runs_say_how_many_are_needed_and_too_large_an_epsilon_that_none_are_enough() -> None:
    with pytest.raises(SpecError, match=r"200 runs are too few to conclude anything.* takes at least 3,\d\d\d"):
        require_enough(Claim(5.0), 200, 0.95)
    require_enough(Claim(1.0), 1000, 0.95)
    with pytest.raises(SpecError, match="at least 1,000"):
        require_enough(Claim(1.0), 999, 0.95)
    assert runs_needed(Claim(30.0), share_of_error(0.95, 5)) is None
    with pytest.raises(SpecError, match=f"more than {MOST_RUNS:,} runs"):
        require_enough(Claim(30.0), MOST_RUNS, 0.95)


def test_the_numbers_of_a_run_are_all_that_a_release_holds() -> None:
    counted: list[int] = []
    histogram = PDPHistogram()
    mechanism = Mechanism(histogram, UNIFORM, STARS, SeededNoise(0), histogram.fit, counted.append)
    pair = next(small_hostile(UNIFORM, "add_or_remove", STARS, batches=True))
    first, second = mechanism.outputs(pair, 250)
    ((ratings,), _) = pair.histories(UNIFORM, STARS)
    again = histogram.fit(ratings, UNIFORM, SeededNoise(0))
    numbers = [again.factors.V, again.factors.offset, *again.statistics.values(), again.factors.precision]
    own = np.concatenate([array.ravel() for array in numbers])
    assert first.numbers[0, : len(own)].tolist() == own.tolist()
    in_words = slice(len(own) + 4 * (ratings.n_items + 1), None)
    assert first.numbers[0, in_words].size > 50
    for side in (first, second):
        assert (side.numbers[:, in_words] == first.numbers[0, in_words]).all(), "what is said is always the same"
    assert len(first.items) == len(second.items) == first.numbers.shape[1]
    assert sum(counted) == 500
    assert first.items.tolist().count(2) == again.factors.V.shape[1] + 1 + len(STARS.levels) + 1 + 4


def nan_offset(fitted: Fitted[Any], rated: bool) -> dict[str, Any]:
    offset = fitted.factors.offset.copy()
    offset[0] = np.nan if rated else 3
    return {"factors": replace(fitted.factors, offset=offset)}


def nan_among_noise(fitted: Fitted[Any], rated: bool) -> dict[str, Any]:
    noisy = fitted.statistics["histogram"].astype(float)
    noisy[0, 0] = np.nan if rated else noisy[0, 0]
    return {"statistics": {"noisy": noisy}}


def infinite(fitted: Fitted[Any], rated: bool) -> dict[str, Any]:
    V = fitted.factors.V.copy()
    V[0, 0] = np.inf if rated else -np.inf
    return {"factors": replace(fitted.factors, V=V)}


LEAKS: dict[str, Callable[[Fitted[Any], bool], dict[str, Any]]] = {
    "no number": nan_offset,
    "no number where there is noise": nan_among_noise,
    "infinity's sign": infinite,
    "zero's sign": lambda fitted, rated: {"statistics": {"s": np.array([-0.0 if rated else 0.0] * 3)}},
    "a large integer's end": lambda fitted, rated: {"statistics": {"s": np.array([2**60 + rated] * 3)}},
    "no number, of no item": lambda fitted, rated: {"statistics": {"s": np.array([np.nan if rated else 0.0])}},
    "a large integer's end, of no item": lambda fitted, rated: {"statistics": {"s": np.array([2**60 + rated])}},
    "a name": lambda fitted, rated: {"statistics": {f"s{int(rated)}": np.zeros(3)}},
    "a shape": lambda fitted, rated: {"statistics": {"s": np.zeros((3, 2) if rated else (2, 3))}},
    "a kind": lambda fitted, rated: {"statistics": {"s": np.zeros(3, np.int64 if rated else np.float64)}},
    "a number by itself": lambda fitted, rated: {"statistics": {"s": np.array(float(rated))}},
    "one number more": lambda fitted, rated: {"statistics": {"s": np.zeros(int(rated))}},
    "a word": lambda fitted, rated: {"about": {**fitted.about, "note": str(rated)}},
    "a word beside a new one every time": lambda fitted, rated: {
        "about": {**fitted.about, "id": secrets.token_hex(8), "note": {"of": [str(rated)]}}
    },
    "a figure beside noise in words": lambda fitted, rated: {
        "about": {**fitted.about, "noisy": float(fitted.factors.offset[0]), "rmse": 1.0 + rated}
    },
}


@pytest.mark.parametrize("leak", LEAKS.values(), ids=LEAKS)
def test_whatever_of_a_release_differs_is_seen(leak: Callable[[Fitted[Any], bool], dict[str, Any]]) -> None:
    histogram = PDPHistogram()

    def fit(ratings: Ratings, specification: PrivacySpecification, noise: NoiseSource) -> Fitted[Any]:
        fitted = histogram.fit(ratings, specification, noise)
        return replace(fitted, **leak(fitted, bool((ratings.items == 2).any())))

    pair = next(small_hostile(UNIFORM, "add_or_remove", STARS, batches=True))
    assert pair.target[0][1] == 2
    mechanism = Mechanism(histogram, UNIFORM, STARS, SeededNoise(0), fit, lambda n: None)
    only = {"one number of the release": LEARNERS["one number of the release"]}
    assert shown_by(Claim(1.0), *mechanism.outputs(pair, 200), only, 0.95).epsilon > 3


@pytest.mark.parametrize("history", ["in batches, as it comes", "in batches, as it stays"])
def test_in_batches_the_real_list_decides_what_is_new(history: str) -> None:
    """Without noise the second release is the histogram of all, whichever batch the rating came in."""
    histogram = PDPHistogram()
    pairs = small_hostile(UNIFORM, "add_or_remove", STARS, batches=True)
    (pair,) = [pair for pair in pairs if pair.history == history]
    silent = Mechanism(histogram, UNIFORM, STARS, _Silence(), histogram.fit, lambda n: None)
    (first, *_), (second, *_) = (side.numbers for side in silent.outputs(pair, 1))
    own = len(first) // 2
    moved = first - second
    before, after = moved[:own], moved[own:]
    assert (before == 0).all() == (history == "in batches, as it comes")
    assert np.abs(after).max() == 2**10


class _Silence(SeededNoise):
    def add_discrete_laplace(self, values: np.ndarray, *, scale: float) -> np.ndarray:
        return values


USERS = PrivacySpecification(epsilon=1, unit="user")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("specification", "many", "n_runs"),
    [(UNIFORM, noise.MANY, 4_000), (UNIFORM, 0, 16_000), (USERS, 0, 6_000)],
    ids=["rating, OpenDP's noise", "rating, our noise", "user, our noise"],
)
def test_what_is_proven_is_not_contradicted_and_with_enough_runs_nearly_reached(
    specification: PrivacySpecification, many: int, n_runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noise, "MANY", many)
    found = audit(PDPHistogram(), specification, n_runs=n_runs, confidence=SURE)
    assert not found.exceeded
    if n_runs > 10_000:  # fewer may show less than there is by chance
        assert found.share >= 0.6
