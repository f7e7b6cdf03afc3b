"""Scaled rotary frequencies, which let a model read longer texts than those it was first trained on.

Rotary positions turn each pair of features by its frequency times the position. Pairs with high frequencies tell
neighbors apart; pairs with low frequencies turn less than once over the whole training length, and larger positions
bring angles that the model has never seen. All methods here lower frequencies, most of them the low ones only. The
functions use plain Python, so that configs can be read without torch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

ScalingKind = Literal["none", "linear", "dynamic", "llama3", "yarn", "longrope"]


@dataclass(frozen=True, kw_only=True)
class RotaryScaling:
    """A method to scale rotary frequencies, with its parameters.

    - linear (Chen et al. 2023): divide every frequency by `factor`.
    - dynamic: the frequencies depend on the length of texts beyond the model's limit; within it they are not scaled.
    - llama3 (Dubey et al. 2024): keep pairs that turn more than `high_rotations` times over `original_len` tokens,
      divide those that turn less than `low_rotations` times, and interpolate between the two by the number of turns.
    - yarn (Peng et al. 2023): the same, but interpolate by the index of the pair.
    - longrope (Ding et al. 2024): divide each frequency by its own divisor.
    """

    kind: ScalingKind = "none"
    factor: float = 1.0
    original_len: int = 1
    low_rotations: float = 1.0
    high_rotations: float = 4.0
    attention_factor: float | None = None
    """Factor on cosines and sines, with yarn and longrope; None is the default of the method's paper."""
    divisors: Sequence[float] = ()

    def scale(self, frequencies: Sequence[float], theta: float) -> list[float]:
        """Return the scaled frequencies. `theta` is the base that the frequencies were computed with."""
        if self.kind == "linear":
            return [frequency / self.factor for frequency in frequencies]
        if self.kind == "longrope":
            return [frequency / divisor for frequency, divisor in zip(frequencies, self.divisors, strict=True)]
        if self.kind not in ("llama3", "yarn"):
            return [*frequencies]
        shares = self._llama3_shares(frequencies) if self.kind == "llama3" else self._yarn_shares(frequencies, theta)
        return [
            frequency / self.factor * share + frequency * (1 - share)
            for frequency, share in zip(frequencies, shares, strict=True)
        ]

    @property
    def amplitude(self) -> float:
        """The factor on cosines and sines: `attention_factor`, or the default of the method if it is None."""
        if self.kind not in ("yarn", "longrope"):
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        if self.factor <= 1.0:
            return 1.0
        if self.kind == "yarn":
            return 0.1 * math.log(self.factor) + 1.0
        return math.sqrt(1 + math.log(self.factor) / math.log(self.original_len))

    def _llama3_shares(self, frequencies: Sequence[float]) -> list[float]:
        """Return how much of each frequency is divided by the factor, from 0 to 1."""
        turns = [self.original_len * frequency / (2 * math.pi) for frequency in frequencies]
        width = self.high_rotations - self.low_rotations
        return [min(1.0, max(0.0, (self.high_rotations - turn) / width)) for turn in turns]

    def _yarn_shares(self, frequencies: Sequence[float], theta: float) -> list[float]:
        n_features = 2 * len(frequencies)

        def index_of(rotations: float) -> float:
            """Return the index, not rounded, of the pair that turns this often over the original length."""
            return n_features * math.log(self.original_len / (rotations * 2 * math.pi)) / (2 * math.log(theta))

        low = max(math.floor(index_of(self.high_rotations)), 0)
        high: float = min(math.ceil(index_of(self.low_rotations)), n_features - 1)
        high = high + 0.001 if low == high else high
        return [min(1.0, max(0.0, (index - low) / (high - low))) for index in range(len(frequencies))]


def rotary_frequencies(width: int, theta: float) -> list[float]:
    """Return the angle per position of each of the width/2 pairs, not scaled: theta^(-2i/width) (Su et al. 2021)."""
    return [theta ** (-2 * index / width) for index in range(width // 2)]
