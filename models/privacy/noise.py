"""Where noise comes from. A release takes ExactNoise; everything that stays inside may take SeededNoise.

Both speak integers: a mechanism puts its data on a grid, asks for noise in grid steps, and only then
goes back to rating units, so that no floating-point number is ever noisy and near-exact at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cache
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

Steps = NDArray[np.int64]


class NoiseSource(ABC):
    """Independent integer noise."""

    @abstractmethod
    def discrete_laplace(self, size: int, *, scale: float) -> Steps:
        """Shape (size,), P(k) proportional to exp(-|k| / scale); scale in grid steps, positive."""

    @abstractmethod
    def discrete_gaussian(self, size: int, *, scale: float) -> Steps:
        """Shape (size,), P(k) proportional to exp(-k^2 / (2 scale^2)); scale in grid steps, positive."""


@final
class ExactNoise(NoiseSource):
    """OpenDP's exact samplers, fed by the operating system's cryptographic generator. There is no seed."""

    def discrete_laplace(self, size: int, *, scale: float) -> Steps:
        return _sample("make_laplace", size, scale)

    def discrete_gaussian(self, size: int, *, scale: float) -> Steps:
        return _sample("make_gaussian", size, scale)


@final
class SeededNoise(NoiseSource):
    """numpy's generator: fast, repeatable with a seed, and never good enough to publish.

    The Gaussian is rounded from the continuous one, which at the scales used (a thousand steps and
    more) nobody could tell from the discrete one by cross-validation.
    """

    def __init__(self, seed: int | np.random.SeedSequence | None = None) -> None:
        self._rng = np.random.default_rng(seed)

    def discrete_laplace(self, size: int, *, scale: float) -> Steps:
        success = -np.expm1(-1 / scale)  # the difference of two geometric variables
        return self._rng.geometric(success, size) - self._rng.geometric(success, size)

    def discrete_gaussian(self, size: int, *, scale: float) -> Steps:
        return np.rint(self._rng.normal(0.0, scale, size)).astype(np.int64)


def _sample(maker: str, size: int, scale: float) -> Steps:
    opendp, space = _opendp(maker)
    return np.array(getattr(opendp.m, maker)(*space, scale=scale)([0] * size), dtype=np.int64)


@cache
def _opendp(maker: str) -> tuple[Any, tuple[Any, Any]]:
    import opendp.prelude as opendp  # seconds to import, and only a release needs it

    opendp.enable_features("contrib")
    metric = opendp.l1_distance(T="i64") if maker == "make_laplace" else opendp.l2_distance(T="f64")
    return opendp, (opendp.vector_domain(opendp.atom_domain(T="i64")), metric)
