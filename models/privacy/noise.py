"""Where noise comes from. A release takes ExactNoise; everything that stays inside may take SeededNoise.

Both speak integers: a mechanism puts its data on a grid, has noise added in grid steps, and only then
goes back to rating units, so that no floating-point number is ever noisy and near-exact at once. The noise
is added by the sampler, not handed out: whatever the sampler does at the ends of 64 bits is then done to
the noisy value, and is post-processing.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from functools import lru_cache
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from models.errors import SpecError
from models.privacy.certified import Law
from models.privacy.exact_sampler import SWIFT, WIDEST, add_noise
from models.ratings import Doubles, Mask

Steps = NDArray[np.int64]

MANY = 10_000
"""Values from which on the noise is our own exact sampler's: OpenDP takes seventy to a hundred times as long."""


class NoiseSource(ABC):
    """Adds independent integer noise to every value; shapes alike, scales in grid steps and positive."""

    @abstractmethod
    def add_discrete_laplace(self, values: Steps, *, scale: float) -> Steps:
        """Noise with P(k) proportional to exp(-|k| / scale)."""

    @abstractmethod
    def add_discrete_gaussian(self, values: Steps, *, scale: float) -> Steps:
        """Noise with P(k) proportional to exp(-k^2 / (2 scale^2))."""

    def add_knorm(self, values: Steps, *, scale: float) -> Steps:
        """To every row, shape (n, d), a vector with density proportional to exp(-|x| / scale), |x| its L2 norm.

        The K-norm mechanism (Hardt and Talwar, STOC 2010): a direction and, independently, a radius that has
        the law of a sum of d exponential variables. Drawn in floating point, then the noisy value is rounded.
        """
        _require_noise(scale)
        normal, radius = self._normals_and_radii(values.shape)
        noise = normal * (scale * radius / np.linalg.norm(normal, axis=1))[:, None]
        noisy: Steps = np.clip(np.rint(values + noise), -WIDEST, WIDEST).astype(np.int64)
        return noisy

    @abstractmethod
    def keep(self, probabilities: Doubles) -> Mask:
        """True with the given probabilities, independently; shapes alike."""

    @abstractmethod
    def _normals_and_radii(self, shape: tuple[int, ...]) -> tuple[Doubles, Doubles]:
        """Standard normal variables of `shape` (n, d), and n sums of d standard exponential ones."""


@final
class ExactNoise(NoiseSource):
    """Fed by the operating system's cryptographic generator, in OpenDP by way of OpenSSL's; there is no seed.

    The discrete laws are sampled exactly: by OpenDP, which many have looked at, and where there are MANY values by
    models/privacy/exact_sampler.py. The K-norm's is not exact: floating point, from the same generator.
    """

    def add_discrete_laplace(self, values: Steps, *, scale: float) -> Steps:
        return _exactly_noisy(values, "laplace", scale)

    def add_discrete_gaussian(self, values: Steps, *, scale: float) -> Steps:
        return _exactly_noisy(values, "gaussian", scale)

    def keep(self, probabilities: Doubles) -> Mask:
        """Exact for the probability as the float it is: a word that ties with its first 64 bits asks for another.

        Against uniform floats, multiples of 2^-53, that of an epsilon far below the threshold would be off by half.
        """
        scaled = np.ldexp(np.minimum(probabilities, 1 - 2.0**-53), 64)
        known = np.floor(scaled)
        words = _unpredictable_words(probabilities.shape)
        kept = (words < known.astype(np.uint64)) | (probabilities >= 1)
        ties = (words == known.astype(np.uint64)) & (known < scaled)
        if ties.any():
            kept[ties] = self.keep((scaled - known)[ties])
        return kept

    def _normals_and_radii(self, shape: tuple[int, ...]) -> tuple[Doubles, Doubles]:
        radii = -np.log(_unpredictable_uniforms(shape)).sum(axis=1)
        return ndtri(_unpredictable_uniforms(shape)), radii


@final
class SeededNoise(NoiseSource):
    """numpy's generator: fast, repeatable with a seed, and never good enough to publish.

    The Gaussian is rounded from the continuous one, which at the scales used (a thousand steps and
    more) nobody could tell from the discrete one by cross-validation.
    """

    def __init__(self, seed: int | np.random.SeedSequence | None = None) -> None:
        self._rng = np.random.default_rng(seed)

    def add_discrete_laplace(self, values: Steps, *, scale: float) -> Steps:
        success = -np.expm1(-1 / scale)  # the difference of two geometric variables
        return values + self._rng.geometric(success, values.shape) - self._rng.geometric(success, values.shape)

    def add_discrete_gaussian(self, values: Steps, *, scale: float) -> Steps:
        return values + np.rint(self._rng.normal(0.0, scale, values.shape)).astype(np.int64)

    def keep(self, probabilities: Doubles) -> Mask:
        return self._rng.random(probabilities.shape) < probabilities

    def _normals_and_radii(self, shape: tuple[int, ...]) -> tuple[Doubles, Doubles]:
        n, d = shape
        return self._rng.standard_normal(shape), self._rng.standard_gamma(d, n)


def _unpredictable_words(shape: tuple[int, ...]) -> NDArray[np.uint64]:
    return np.frombuffer(secrets.token_bytes(8 * int(np.prod(shape))), np.uint64).reshape(shape)


def _unpredictable_uniforms(shape: tuple[int, ...]) -> Doubles:
    """Odd multiples of 2^-53, hence neither 0 nor 1, from the operating system's cryptographic generator."""
    words = _unpredictable_words(shape)
    return ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def _require_noise(scale: float) -> None:
    if not 0 < scale < np.inf:
        raise SpecError("The scale of noise is positive and finite, and this one is not: nothing was added.")


def _exactly_noisy(values: Steps, law: Law, scale: float) -> Steps:
    _require_noise(scale)
    sampler = add_noise if values.size >= MANY and scale < SWIFT else _by_opendp
    return sampler(values, scale=scale, law=law)


def _by_opendp(values: Steps, *, scale: float, law: Law) -> Steps:
    noisy = _opendp(law, scale)(values.ravel().tolist())
    return np.clip(np.array(noisy, dtype=np.int64), -WIDEST, WIDEST).reshape(values.shape)


@lru_cache(maxsize=64)
def _opendp(law: Law, scale: float) -> Any:
    import opendp.prelude as opendp  # seconds to import, and only a release needs it

    opendp.enable_features("contrib")
    metric = opendp.l1_distance(T="i64") if law == "laplace" else opendp.l2_distance(T="f64")
    return getattr(opendp.m, f"make_{law}")(opendp.vector_domain(opendp.atom_domain(T="i64")), metric, scale=scale)
