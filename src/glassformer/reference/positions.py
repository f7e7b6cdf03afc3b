"""Position information: sinusoids that are added to embeddings, rotary angles, and biases of attention scores."""

import math

import numpy as np

from glassformer.reference.parameters import Array, Parameters


def sinusoids(length: int, width: int, *, halves: bool = False) -> Array:
    """Return sinusoidal positions (length, width): sin and cos of pos / 10000^(2i/width) in columns 2i and 2i+1.

    `halves` puts all sines in the first half of the columns and all cosines in the second.
    """
    table = np.zeros((length, width))
    n_sines = (width + 1) // 2
    for i in range(n_sines):
        angle = np.arange(length) / 10000 ** (2 * i / width)
        table[:, i if halves else 2 * i] = np.sin(angle)
        if 2 * i + 1 < width:
            table[:, n_sines + i if halves else 2 * i + 1] = np.cos(angle)
    return table


def rotary_angles(positions: Array, head_size: int, theta: float) -> Array:
    """Return the rotary angle of each feature pair at each position: (B, T) -> (B, 1, T, D/2)."""
    rate = theta ** (-np.arange(0, head_size, 2) / head_size)
    return positions[:, None, :, None] * rate


def turn(x: Array, angles: Array) -> Array:
    """Rotate each pair (x[i], x[i + D/2]) of queries or keys (B, H, T, D) by its rotary angle.

    The backward pass is the rotation by the negative angle.
    """
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


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
