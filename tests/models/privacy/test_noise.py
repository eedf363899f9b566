from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chisquare, dlaplace, gamma, kstest, norm, uniform

from models.privacy.exact_sampler import WIDEST
from models.privacy.noise import MANY, ExactNoise, NoiseSource, SeededNoise, _unpredictable_uniforms

ROOT = Path(__file__).parents[3]
FIFTY = np.zeros(50, np.int64)
LAWS = ["add_discrete_laplace", "add_discrete_gaussian"]
SOURCES: list[Callable[[], NoiseSource]] = [ExactNoise, lambda: SeededNoise(3)]


def laplace_fits(sample: np.ndarray, scale: float) -> bool:
    """Chi-square of the counts on the integers against P(k) proportional to exp(-|k| / scale)."""
    edges = np.arange(-int(4 * scale), int(4 * scale) + 1)
    law = dlaplace(1 / scale)
    expected = np.concatenate([[law.cdf(edges[0] - 1)], law.pmf(edges), [law.sf(edges[-1])]]) * len(sample)
    seen = np.bincount(np.clip(sample, edges[0] - 1, edges[-1] + 1) - edges[0] + 1, minlength=len(expected))
    return bool(chisquare(seen, expected).pvalue > 1e-4)


def gaussian_fits(sample: np.ndarray, scale: float) -> bool:
    """Mean square against scale^2; at a thousand steps the discrete and the continuous law have the same."""
    standard_error = np.sqrt(2 / len(sample))
    return bool(abs((sample.astype(float) ** 2).mean() / scale**2 - 1) < 4 * standard_error)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(("claimed", "fits"), [(5.0, True), (4.6, False), (5.4, False)])
def test_laplace_noise_has_the_claimed_scale(source: Callable[[], NoiseSource], claimed: float, fits: bool) -> None:
    assert laplace_fits(source().add_discrete_laplace(np.zeros(20_000, np.int64), scale=5.0), claimed) == fits


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(("claimed", "fits"), [(2000.0, True), (1850.0, False), (2150.0, False)])
def test_gaussian_noise_has_the_claimed_scale(source: Callable[[], NoiseSource], claimed: float, fits: bool) -> None:
    sample = source().add_discrete_gaussian(np.zeros(20_000, np.int64), scale=2000.0)
    assert gaussian_fits(sample, claimed) == fits
    assert abs(np.mean(np.abs(sample) < 2000) - (norm.cdf(1) - norm.cdf(-1))) < 0.015


def knorm_fits(sample: np.ndarray, scale: float) -> bool:
    """Kolmogorov-Smirnov of the radii of rows against the law of a sum of d exponential variables."""
    radii = np.linalg.norm(sample.astype(float), axis=1)
    return bool(kstest(radii, gamma(sample.shape[1], scale=scale).cdf).pvalue > 1e-4)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("d", [1, 3, 20])
@pytest.mark.parametrize(("claimed", "fits"), [(2000.0, True), (1850.0, False), (2150.0, False)])
def test_knorm_noise_has_the_claimed_scale(
    source: Callable[[], NoiseSource], d: int, claimed: float, fits: bool
) -> None:
    assert knorm_fits(source().add_knorm(np.zeros((20_000, d), np.int64), scale=2000.0), claimed) == fits


@pytest.mark.parametrize("source", SOURCES)
def test_knorm_noise_has_no_favourite_direction(source: Callable[[], NoiseSource]) -> None:
    sample = source().add_knorm(np.zeros((40_000, 3), np.int64), scale=2000.0).astype(float)
    direction = sample / np.linalg.norm(sample, axis=1, keepdims=True)
    assert np.abs(direction.mean(axis=0)).max() < 4 / np.sqrt(3 * 40_000)
    assert np.allclose(direction.T @ direction / 40_000, np.eye(3) / 3, atol=0.01)
    radius = np.linalg.norm(sample, axis=1)
    assert abs(np.corrcoef(direction[:, 0], radius)[0, 1]) < 4 / np.sqrt(40_000)
    assert kstest(direction[:, 0], uniform(-1, 2).cdf).pvalue > 1e-4  # Archimedes: flat in three dimensions


def test_knorm_noise_of_huge_scale_cuts_the_noisy_value_and_not_the_noise() -> None:
    noisy = ExactNoise().add_knorm(np.full((2000, 1), 12345, np.int64), scale=1e19)
    assert (np.abs(noisy) == 2**62).any()
    assert not (np.abs(noisy - 12345) == 2**62).any()


@pytest.mark.parametrize("byte", [b"\x00", b"\xff"])
def test_at_its_ends_the_generator_gives_neither_0_nor_1(monkeypatch: pytest.MonkeyPatch, byte: bytes) -> None:
    """An exact 1 would be an infinite normal, and a row without noise."""
    monkeypatch.setattr("models.privacy.noise.secrets.token_bytes", lambda n: byte * n)
    (uniform,) = set(_unpredictable_uniforms((3, 2)).ravel().tolist())
    assert 0 < uniform < 1
    assert uniform * 2**53 % 2 == 1
    assert np.isfinite(ExactNoise()._normals_and_radii((2, 3))[0]).all()
    assert ExactNoise().keep(np.array([1.0, 0.0])).tolist() == [True, False]


def test_exact_noise_repeats_itself_for_nobody() -> None:
    first, second = (ExactNoise().add_discrete_laplace(FIFTY, scale=1e6) for _ in range(2))
    assert not (first == second).any()
    np.random.seed(0)
    third = ExactNoise().add_discrete_laplace(FIFTY, scale=1e6)
    np.random.seed(0)
    assert not (ExactNoise().add_discrete_laplace(FIFTY, scale=1e6) == third).any()
    first, second = (ExactNoise().add_knorm(FIFTY[:, None], scale=1e6) for _ in range(2))
    assert not (first == second).any()
    first, second = (ExactNoise().keep(np.full(200, 0.5)) for _ in range(2))
    assert (first != second).any()
    with pytest.raises(TypeError):
        ExactNoise(0)  # type: ignore[call-arg]


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
