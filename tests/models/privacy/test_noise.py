from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chisquare, dlaplace, norm

from models.privacy.noise import ExactNoise, NoiseSource, SeededNoise

ROOT = Path(__file__).parents[3]
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
    assert laplace_fits(source().discrete_laplace(20_000, scale=5.0), claimed) == fits


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(("claimed", "fits"), [(2000.0, True), (1850.0, False), (2150.0, False)])
def test_gaussian_noise_has_the_claimed_scale(source: Callable[[], NoiseSource], claimed: float, fits: bool) -> None:
    sample = source().discrete_gaussian(20_000, scale=2000.0)
    assert gaussian_fits(sample, claimed) == fits
    assert abs(np.mean(np.abs(sample) < 2000) - (norm.cdf(1) - norm.cdf(-1))) < 0.015


def test_exact_noise_repeats_itself_for_nobody() -> None:
    first, second = (ExactNoise().discrete_laplace(50, scale=1e6) for _ in range(2))
    assert not (first == second).any()
    np.random.seed(0)
    third = ExactNoise().discrete_laplace(50, scale=1e6)
    np.random.seed(0)
    assert not (ExactNoise().discrete_laplace(50, scale=1e6) == third).any()
    with pytest.raises(TypeError):
        ExactNoise(0)  # type: ignore[call-arg]


def test_seeded_noise_repeats_itself() -> None:
    first, second = (SeededNoise(7).discrete_laplace(50, scale=1e6) for _ in range(2))
    assert (first == second).all()


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
