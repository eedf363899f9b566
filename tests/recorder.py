"""A noise source that adds nothing and notes what it was given."""

from __future__ import annotations

import numpy as np

from models.privacy.noise import NoiseSource, Steps
from models.ratings import Doubles, Mask


class Recorder(NoiseSource):
    """`given` holds the exact values that noise was asked for, with its law and scale: all that a release learns."""

    def __init__(self) -> None:
        self.given: list[tuple[str, Steps, float]] = []
        self.probabilities: list[Doubles] = []

    def add_discrete_laplace(self, values: Steps, *, scale: float) -> Steps:
        self.given.append(("laplace", values, scale))
        return values

    def add_discrete_gaussian(self, values: Steps, *, scale: float) -> Steps:
        self.given.append(("gaussian", values, scale))
        return values

    def add_knorm(self, values: Steps, *, scale: float) -> Steps:
        self.given.append(("knorm", values, scale))
        return values

    def keep(self, probabilities: Doubles) -> Mask:
        self.probabilities.append(probabilities)
        return np.ones(probabilities.shape, np.bool_)

    def _normals_and_radii(self, shape: tuple[int, ...]) -> tuple[Doubles, Doubles]:
        raise AssertionError("add_knorm draws nothing here")
