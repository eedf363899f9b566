from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import beta, chisquare, gamma, kstest, laplace, norm

from models.errors import SpecError
from models.histogram.pdp_histogram import MOST_ITEMS, USER_STEPS, laplace_scale
from models.privacy.exact_sampler import WIDEST, Steps
from models.privacy.gaussian import discrete_gaussian_multiplier
from models.privacy.noise import MANY, ExactNoise, NoiseSource, SeededNoise, _unpredictable_uniforms

ROOT = Path(__file__).parents[3]
FIFTY = np.zeros(50, np.int64)
LAWS = ["add_discrete_laplace", "add_discrete_gaussian"]
SOURCES: list[Callable[[], NoiseSource]] = [ExactNoise, lambda: SeededNoise(3)]
N = 40_000

# What a release or a cross-validation draws: a rating's noise at epsilons of .1, 1 and 10, a user's at the same.
EPSILONS = [0.1, 1.0, 10.0]
USED = [(LAWS[0], laplace_scale(epsilon)) for epsilon in EPSILONS] + [
    (LAWS[1], USER_STEPS * discrete_gaussian_multiplier(epsilon, 1e-6, steps=USER_STEPS, cells=MOST_ITEMS))
    for epsilon in EPSILONS
]
CLAIMS = [(1.0, True), (1.05, False), (1 / 1.05, False)]


def from_opendp(law: str, scale: float) -> Steps:
    """N values in pieces, so that OpenDP makes them."""
    piece = np.zeros(N // 5, np.int64)
    return np.concatenate([getattr(ExactNoise(), law)(piece, scale=scale) for _ in range(5)])


def from_ourselves(law: str, scale: float) -> Steps:
    """As many values as ExactNoise does not give to OpenDP."""
    return np.asarray(getattr(ExactNoise(), law)(np.zeros(N, np.int64), scale=scale))


def from_numpy(law: str, scale: float) -> Steps:
    return np.asarray(getattr(SeededNoise(3), law)(np.zeros(N, np.int64), scale=scale))


drawn = cache(lambda source, law, scale: source(law, scale))


def fits(sample: Steps, law: str, scale: float) -> bool:
    """Two-sided: the size (mean magnitude or mean square) within 5 standard errors, and the shape by chi-square.

    At a hundred steps and more, the discrete law is the continuous one at k + 1/2, in 40 bins of equal probability.
    """
    if law == "add_discrete_laplace":
        size, error, limit = np.abs(sample).mean() / scale, 1.0, laplace
    else:
        size, error, limit = (sample.astype(float) ** 2).mean() / scale**2, np.sqrt(2), norm
    edges = np.floor(limit.ppf(np.arange(1, 40) / 40) * scale)
    below = np.concatenate([[0.0], limit.cdf((edges + 0.5) / scale), [1.0]])
    seen = np.bincount(np.searchsorted(edges, sample), minlength=40)
    shape_fits = chisquare(seen, np.diff(below) * len(sample)).pvalue > 1e-6
    return bool(shape_fits and abs(size - 1) < 5 * error / np.sqrt(len(sample)))


@pytest.mark.parametrize("source", [from_opendp, from_ourselves, from_numpy])
@pytest.mark.parametrize(("law", "scale"), USED)
@pytest.mark.parametrize(("off", "is_right"), CLAIMS)
def test_noise_has_the_claimed_law(
    source: Callable[[str, float], Steps], law: str, scale: float, off: float, is_right: bool
) -> None:
    """A scale 5% off, on either side, failed in 200 of 200 samples of each law and scale; the right one in none."""
    assert fits(drawn(source, law, scale), law, scale * off) == is_right


def radii_fit(sample: Steps, scale: float) -> bool:
    """Lengths of rows against the law of a sum of d exponential variables: mean within 5 standard errors, and shape."""
    radii = np.linalg.norm(sample.astype(float), axis=1)
    law = gamma(sample.shape[1], scale=scale)
    error = law.std() / np.sqrt(len(radii))
    return bool(kstest(radii, law.cdf).pvalue > 1e-6 and abs(radii.mean() - law.mean()) < 5 * error)


def directions_fit(sample: Steps) -> bool:
    """Uniform on the sphere and independent of the length, within 5.5 standard errors each.

    Of every coordinate its sign, its square, its product with every other and with the length; of the first its law.
    """
    n, d = sample.shape
    radius = np.linalg.norm(sample.astype(float), axis=1)
    direction = sample / radius[:, None]
    if d > 1 and kstest(direction[:, 0] ** 2, beta(0.5, (d - 1) / 2).cdf).pvalue < 1e-6:
        return False
    with_length = direction.T @ (radius - radius.mean()) / radius.std() / n
    moved = np.concatenate([direction.mean(axis=0), with_length]) * np.sqrt(n * d)
    errors = np.where(np.eye(d), np.sqrt(2 * (d - 1) / d), 1) / np.sqrt(n * d * (d + 2))
    pairs = direction.T @ direction / n - np.eye(d) / d
    return bool(np.abs(moved).max() < 5.5 and (np.abs(pairs) <= 5.5 * errors + 1e-9).all())


drawn_rows = cache(lambda source, d, scale: source().add_knorm(np.zeros((N, d), np.int64), scale=scale))


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("d", [1, 3, 20])
@pytest.mark.parametrize("scale", [0.4 * 2**20, 4 * 2**20, 40 * 2**20])
@pytest.mark.parametrize(("off", "is_right"), CLAIMS)
def test_knorm_noise_has_the_claimed_radius(
    source: Callable[[], NoiseSource], d: int, scale: float, off: float, is_right: bool
) -> None:
    """A scale 5% off, on either side, failed in 40 of 40 samples for each d; the right one in none."""
    assert radii_fit(drawn_rows(source, d, scale), scale * off) == is_right


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("d", [1, 3, 20])
def test_knorm_noise_has_no_favourite_direction(source: Callable[[], NoiseSource], d: int) -> None:
    assert directions_fit(drawn_rows(source, d, 4 * 2**20))


@pytest.mark.parametrize("d", [3, 20])
def test_a_favourite_direction_shows(d: int) -> None:
    """Towards the corners of a cube; one coordinate 5% longer; plus too often by 2%; the long ones in one direction."""
    rng = np.random.default_rng(0)
    normal, radius = rng.normal(size=(N, d)), rng.gamma(d, size=(N, 1)) * 1e6

    def rows(x: np.ndarray) -> Steps:
        return np.asarray(np.rint(x / np.linalg.norm(x, axis=1, keepdims=True) * radius).astype(np.int64))

    assert directions_fit(rows(normal))
    assert not directions_fit(rows(rng.uniform(-1, 1, size=(N, d))))
    assert not directions_fit(rows(normal * np.where(np.arange(d) == d - 1, 1.05, 1)))
    assert not directions_fit(rows(np.where(rng.random((N, d)) < 0.04, np.abs(normal), normal)))
    assert not directions_fit(rows(normal + 0.05 * np.sign(radius - np.median(radius))))


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("probability", [0.05, 0.3, 0.5, 0.95])
def test_ratings_are_kept_with_the_claimed_probability(source: Callable[[], NoiseSource], probability: float) -> None:
    """Two-sided, within 5 standard errors: 2% of .05, against 5% that would show every time."""
    n = 1_000_000
    kept = source().keep(np.full(n, probability)).mean()
    error = np.sqrt(probability * (1 - probability) / n)
    assert abs(kept - probability) < 5 * error
    assert 10 * error < 0.05 * probability


def test_knorm_noise_of_huge_scale_cuts_the_noisy_value_and_not_the_noise() -> None:
    noisy = ExactNoise().add_knorm(np.full((2000, 1), 12345, np.int64), scale=1e19)
    assert (np.abs(noisy) == 2**62).any()
    assert not (np.abs(noisy - 12345) == 2**62).any()


@pytest.mark.parametrize("probability", [0.3, 1e-3, 2.0**-52, 1.3e-18, 5e-324])
def test_the_probability_of_keeping_is_exact_however_small(probability: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """U just below, at and just above the probability, in as many words as it takes to write it."""
    exact, n_words = Fraction(probability), -(-(1074 + 53) // 64)
    numerator = int(exact * 2 ** (64 * n_words))
    assert numerator == exact * 2 ** (64 * n_words)
    for drawn, is_kept in ((numerator - 1, True), (numerator, False), (numerator + 1, False)):
        script = BytesIO(b"".join(word.to_bytes(8, "little") for word in words_of(drawn, n_words)))
        monkeypatch.setattr("models.privacy.noise.secrets.token_bytes", script.read)
        assert ExactNoise().keep(np.array([probability])).tolist() == [is_kept]


def words_of(number: int, n_words: int) -> list[int]:
    return [number >> 64 * place & 2**64 - 1 for place in reversed(range(n_words))]


@pytest.mark.parametrize("byte", [b"\x00", b"\xff"])
def test_at_its_ends_the_generator_gives_neither_0_nor_1(monkeypatch: pytest.MonkeyPatch, byte: bytes) -> None:
    """An exact 1 would be an infinite normal, and a row without noise."""
    monkeypatch.setattr("models.privacy.noise.secrets.token_bytes", lambda n: byte * n)
    (uniform,) = set(_unpredictable_uniforms((3, 2)).ravel().tolist())
    assert 0 < uniform < 1
    assert uniform * 2**53 % 2 == 1
    assert np.isfinite(ExactNoise()._normals_and_radii((2, 3))[0]).all()
    assert ExactNoise().keep(np.array([1.0, 0.0])).tolist() == [True, False]


@pytest.mark.parametrize("scale", [0.0, -1.0, np.inf, np.nan])
@pytest.mark.parametrize("law", [*LAWS, "add_knorm"])
def test_a_scale_that_would_add_nothing_or_no_number_is_refused(law: str, scale: float) -> None:
    for values in (FIFTY[:, None], np.zeros((MANY, 1), np.int64)):
        with pytest.raises(SpecError, match="positive and finite"):
            getattr(ExactNoise(), law)(values, scale=scale)


def test_seeded_noise_repeats_itself() -> None:
    first, second = (SeededNoise(7).add_discrete_laplace(FIFTY, scale=1e6) for _ in range(2))
    assert (first == second).all()


@pytest.mark.parametrize("source", SOURCES)
def test_noise_is_added_to_every_value_in_its_place(source: Callable[[], NoiseSource]) -> None:
    values = np.arange(12, dtype=np.int64).reshape(3, 4) * 10**6
    for noisy in (
        source().add_discrete_laplace(values, scale=10.0),
        source().add_discrete_gaussian(values, scale=10.0),
    ):
        assert noisy.shape == values.shape
        assert np.abs(noisy - values).max() < 1000
        assert (noisy != values).any()


@pytest.mark.parametrize("law", LAWS)
def test_noise_of_huge_scale_cuts_the_noisy_value_and_not_the_noise(law: str) -> None:
    """Noise cut by itself and added to the data afterwards would show the data as the distance from the end."""
    noisy = getattr(ExactNoise(), law)(np.full(MANY, 12345, np.int64), scale=1e19)
    assert (np.abs(noisy) == WIDEST).any()
    assert not np.isin(np.abs(noisy), [WIDEST - 12345, WIDEST + 12345]).any()


TYPED = """
from models.index import make_recommender
from models.privacy.noise import ExactNoise, SeededNoise
from models.privacy.specification import PrivacySpecification
from models.ratings import Ratings

def release(ratings: Ratings) -> None:
    specification = PrivacySpecification(epsilon=1)
    recommender = make_recommender("pdp-histogram", {})
    recommender.fit(ratings, specification, NOISE).release
"""


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "accepted"), [("ExactNoise()", True), ("SeededNoise(0)", False)])
def test_the_type_checker_refuses_a_release_with_seeded_noise(tmp_path: Path, noise: str, accepted: bool) -> None:
    file = tmp_path / "attempt.py"
    file.write_text(TYPED.replace("NOISE", noise))
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(ROOT / "pyproject.toml"), str(file)]
    outcome = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (outcome.returncode == 0) == accepted, outcome.stdout
    if not accepted:
        assert 'Invalid self argument "Fitted[SeededNoise]"' in outcome.stdout
