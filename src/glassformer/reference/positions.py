"""Position information: sinusoids that are added to embeddings, rotary angles, and biases of attention scores."""

import math

import numpy as np

from glassformer.reference.config import Config
from glassformer.reference.parameters import Array, Parameters


def sinusoids(length: int, width: int, *, halves: bool = False, full_range: bool = False) -> Array:
    """Return sinusoidal positions (length, width): sin and cos of pos / 10000^(2i/width) in columns 2i and 2i+1.

    `halves` puts all sines in the first half of the columns and all cosines in the second. With `full_range` the
    exponents reach 1: the last pair is sin and cos of pos / 10000.
    """
    table = np.zeros((length, width))
    n_sines = (width + 1) // 2
    for i in range(n_sines):
        angle = np.arange(length) / 10000 ** (i / (n_sines - 1) if full_range else 2 * i / width)
        table[:, i if halves else 2 * i] = np.sin(angle)
        if 2 * i + 1 < width:
            table[:, n_sines + i if halves else 2 * i + 1] = np.cos(angle)
    return table


def rotary_rates(config: Config) -> Array:
    """Return the rotary angle per position of each feature pair, scaled as the config says: (R/2,).

    R is the number of rotated features of a head. A pair that turns often over the length of the first training keeps
    its rate with llama3 and yarn, and a pair that turns rarely has its rate divided by the whole factor.
    """
    width, factor = config.rope_size, config.rope_factor
    rates = config.rope_theta ** (-np.arange(0, width, 2) / width)
    if config.rope_scaling == "linear":
        return rates / factor
    if config.rope_scaling == "longrope":
        is_long = config.max_len is None or config.max_len > (config.rope_original_len or 1)
        return rates / np.array(config.rope_long_divisors if is_long else config.rope_short_divisors)
    if config.rope_scaling not in ("llama3", "yarn"):
        return rates
    length, low, high = config.rope_original_len or 1, config.rope_low_rotations, config.rope_high_rotations
    if config.rope_scaling == "llama3":
        turns = length * rates / (2 * math.pi)
        kept = np.clip((turns - low) / (high - low), 0, 1)
    else:
        # The index of the pair that turns n times over the length solves length * theta^(-2i/width) = 2 pi n.
        first, last = (width / 2 * math.log(length / (2 * math.pi * turns), config.rope_theta) for turns in (high, low))
        begin, end = max(math.floor(first), 0), min(math.ceil(last), width - 1)
        kept = 1 - np.clip((np.arange(width // 2) - begin) / (end - begin or 0.001), 0, 1)
    return kept * rates + (1 - kept) * rates / factor


def rotary_amplitude(config: Config) -> float:
    """Return the factor on rotated queries and keys, 1 unless the scaling is yarn or longrope."""
    if config.rope_scaling not in ("yarn", "longrope"):
        return 1.0
    if config.rope_attention_factor is not None:
        return config.rope_attention_factor
    growth = math.log(max(config.rope_factor, 1.0))
    if config.rope_scaling == "yarn":
        return 1 + 0.1 * growth
    return math.sqrt(1 + growth / math.log(config.rope_original_len or 1)) if growth else 1.0


def rotary_angles(positions: Array, rates: Array) -> Array:
    """Return the rotary angle of each feature pair at each position: (B, T) -> (B, 1, T, R/2)."""
    return positions[:, None, :, None] * rates


def turn(x: Array, angles: Array, amplitude: float = 1.0) -> Array:
    """Rotate each pair (x[i], x[i + R/2]) of queries or keys (B, H, T, D) by its angle and scale it by `amplitude`.

    R is twice the number of angles; features from the R-th on stay as they are. The backward pass is the rotation by
    the negative angle, with the same amplitude.
    """
    half = angles.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    cos, sin = amplitude * np.cos(angles), amplitude * np.sin(angles)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)


def distance_ahead(positions: Array) -> Array:
    """Return key position minus query position for every pair of tokens: (B, T) -> (B, query, key)."""
    return positions[:, None, :] - positions[:, :, None]


def alibi(n_heads: int, positions: Array) -> Array:
    """Return the ALiBi score bias (Press et al. 2022), minus slope times distance: (B, T) -> (B, H, T, T)."""
    power = 2 ** int(math.log2(n_heads))
    slopes = [2 ** (-8 * (h + 1) / power) for h in range(power)]
    slopes += [2 ** (-8 * (h + 0.5) / power) for h in range(power)][: n_heads - power]
    return -np.array(slopes)[:, None, None] * np.abs(distance_ahead(positions))[:, None]


class RelativeBias:
    """T5's relative position bias: one learned value per head and distance bucket."""

    def __init__(self, params: Parameters, max_distance: int, bidirectional: bool):
        self.params, self.max_distance, self.bidirectional = params, max_distance, bidirectional

    def forward(self, positions: Array) -> Array:
        """Return the bias of the attention scores for position numbers (B, T) as (B, H, T, T)."""
        self.buckets = np.vectorize(self.bucket, otypes=[int])(distance_ahead(positions))
        return self.params["weight"][self.buckets].transpose(0, 3, 1, 2)

    def backward(self, dbias: Array) -> None:
        """Add the gradient of each bucket's values: the sum of `dbias` over all token pairs in the bucket."""
        grad = np.zeros_like(self.params["weight"])
        np.add.at(grad, self.buckets, dbias.transpose(0, 2, 3, 1))
        self.params.add_grad("weight", grad)

    def bucket(self, ahead: int) -> int:
        """Return the bucket number of a relative position, key minus query.

        Small distances have a bucket each; larger distances share buckets that widen logarithmically.
        """
        n_buckets, offset, distance = len(self.params["weight"]), 0, max(0, -int(ahead))
        if self.bidirectional:
            n_buckets //= 2
            offset, distance = (n_buckets if ahead > 0 else 0), abs(int(ahead))
        n_exact = n_buckets // 2
        if distance < n_exact:
            return offset + distance
        # In float32, as the family's own code has it: the last digit decides on which side of a border a distance
        # falls.
        growth = np.log(np.float32(distance / n_exact)) / np.float32(math.log(self.max_distance / n_exact))
        return offset + min(n_buckets - 1, n_exact + int(growth * np.float32(n_buckets - n_exact)))
