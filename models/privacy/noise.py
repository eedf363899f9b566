"""Where noise comes from. A release takes ExactNoise; everything that stays inside may take SeededNoise.

Both speak integers: a mechanism puts its data on a grid, has noise added in grid steps, and only then
goes back to rating units, so that no floating-point number is ever noisy and near-exact at once. The noise
is added by the sampler, not handed out: whatever the sampler does at the ends of 64 bits is then done to
the noisy value, and is post-processing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cache
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

Steps = NDArray[np.int64]


class NoiseSource(ABC):
    """Adds independent integer noise to every value; shapes alike, scales in grid steps and positive."""

    @abstractmethod
    def add_discrete_laplace(self, values: Steps, *, scale: float) -> Steps:
        """Noise with P(k) proportional to exp(-|k| / scale)."""

    @abstractmethod
    def add_discrete_gaussian(self, values: Steps, *, scale: float) -> Steps:
        """Noise with P(k) proportional to exp(-k^2 / (2 scale^2))."""


@final
class ExactNoise(NoiseSource):
    """OpenDP's exact samplers, fed by the operating system's cryptographic generator. There is no seed."""

    def add_discrete_laplace(self, values: Steps, *, scale: float) -> Steps:
        return _measured("make_laplace", values, scale)

    def add_discrete_gaussian(self, values: Steps, *, scale: float) -> Steps:
        return _measured("make_gaussian", values, scale)


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


def _measured(maker: str, values: Steps, scale: float) -> Steps:
    opendp, space = _opendp(maker)
    noisy = getattr(opendp.m, maker)(*space, scale=scale)(values.ravel().tolist())
    return np.array(noisy, dtype=np.int64).reshape(values.shape)


@cache
def _opendp(maker: str) -> tuple[Any, tuple[Any, Any]]:
    import opendp.prelude as opendp  # seconds to import, and only a release needs it

    opendp.enable_features("contrib")
    metric = opendp.l1_distance(T="i64") if maker == "make_laplace" else opendp.l2_distance(T="f64")
    return opendp, (opendp.vector_domain(opendp.atom_domain(T="i64")), metric)
