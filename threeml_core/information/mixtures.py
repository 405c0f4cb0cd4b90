"""Synthetic states whose mutual information with the tokens is known in closed form, to check estimators on."""

from __future__ import annotations

import dataclasses
import math

import numpy as np


@dataclasses.dataclass(frozen=True)
class Mixture:
    """`components` far-apart Gaussian clouds of equal weight; the cloud tells the token with probability `coupling`.

    Component c has the favourite token c mod `tokens`, which it shows with probability `coupling`; else any token,
    uniformly. As the clouds do not overlap, what a state says about the token is what its component says.

    Attributes:
        components: a multiple of `tokens`.
        tokens: different tokens, equally frequent.
        coupling: 0 (nothing is known) to 1 (the component tells the token).
        width: d of a state.
    """

    components: int
    tokens: int
    coupling: float
    width: int = 16

    def __post_init__(self) -> None:
        if self.components % self.tokens or not 0 <= self.coupling <= 1:
            raise ValueError("expected a multiple of `tokens` components, and a coupling from 0 to 1")

    @property
    def entropy(self) -> float:
        """Of the tokens; nats."""
        return math.log(self.tokens)

    @property
    def mutual_information(self) -> float:
        """I(state; token) in nats: log T + p log p + (1 - p) log((1 - p)/(T - 1)), p: probability of the favourite."""
        t = self.tokens
        favourite = self.coupling + (1 - self.coupling) / t
        other = (1 - self.coupling) / t
        terms = [favourite, *([other] * (t - 1))]
        return self.entropy + sum(p * math.log(p) for p in terms if p > 0)

    def sample(self, size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """(size, width) float16 states and (size,) tokens."""
        rng = np.random.default_rng(seed)
        centres = np.random.default_rng((self.components, self.width)).normal(size=(self.components, self.width))
        component = rng.integers(self.components, size=size)
        states = 4 * centres[component] + rng.normal(scale=0.05, size=(size, self.width))
        told = rng.random(size) < self.coupling
        tokens = np.where(told, component % self.tokens, rng.integers(self.tokens, size=size))
        return states.astype(np.float16), tokens
