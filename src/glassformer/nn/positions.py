"""Six ways to tell a Transformer the order of its tokens.

Two are added to the embeddings (sinusoidal, learned), one turns queries and keys (rotary), two are added to the
scores (T5's relative bias, ALiBi), and the sixth is none at all. Tables that are computed, not learned, stay out of
`state_dict()`.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from glassformer.nn.tensor_checks import check_positive


def sinusoids(length: int, width: int, *, halves: bool = False) -> Tensor:
    """The paper's table (section 3.5), (length, width) in float64: sin and cos of pos / 10000^(2i/width).

    Small i is the *fast* wave: pair 0 turns once in 2π tokens, the last pair once in about 10000 · 2π. An odd width
    ends with the sine of its last pair. `halves` puts all sines before all cosines, as Marian does, instead of
    alternating them.
    """
    check_positive("width", width)
    position = torch.arange(length, dtype=torch.float64)[:, None]
    rate = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angle = position * rate  # (length, ceil(width / 2))
    table = torch.empty(length, width, dtype=torch.float64)
    n_cos = width // 2
    sin, cos = angle.sin(), angle[:, :n_cos].cos()
    if halves:
        table[:, : width - n_cos], table[:, width - n_cos :] = sin, cos
    else:
        table[:, 0::2], table[:, 1::2] = sin, cos
    return table


class SinusoidalPositions(nn.Module):
    """The fixed table of `sinusoids`, looked up by position. It learns nothing."""

    def __init__(self, max_len: int, width: int, *, halves: bool = False):
        super().__init__()
        check_positive("max_len", max_len)
        self.max_len, self.width, self.halves = max_len, width, halves
        self._tables: dict[tuple[torch.dtype, torch.device], Tensor] = {}

    def forward(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        """(B or 1, T) -> (B or 1, T, C), rounded once, from float64 to `dtype`."""
        key = dtype, positions.device
        if key not in self._tables:
            self._tables[key] = sinusoids(self.max_len, self.width, halves=self.halves).to(dtype).to(positions.device)
        return self._tables[key][positions]


class LearnedPositions(nn.Module):
    """One learned vector for each position up to `max_len`, in a table that begins with `offset` rows of no use."""

    def __init__(self, max_len: int, width: int, *, offset: int = 0):
        super().__init__()
        check_positive("max_len", max_len)
        self.offset = offset
        self.weight = nn.Parameter(torch.empty(max_len + offset, width).normal_(std=0.02))

    def forward(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        """(B or 1, T) -> (B or 1, T, C)."""
        return self.weight[positions + self.offset if self.offset else positions].to(dtype)


class Rotation(NamedTuple):
    """The angle of every position, as cosine and sine: each (B or 1, 1, T, D/2)."""

    cos: Tensor
    sin: Tensor

    def turn(self, x: Tensor) -> Tensor:
        """Turn each pair (x[i], x[i + D/2]) by its angle: (B, H, T, D) -> (B, H, T, D)."""
        first, second = x.chunk(2, dim=-1)
        cos, sin = self.cos.to(x.dtype), self.sin.to(x.dtype)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Rotary(nn.Module):
    """Rotary positions (Su et al. 2021): turned queries and keys meet at an angle that tells their distance alone."""

    def __init__(self, head_dim: int, *, theta: float = 10000.0):
        super().__init__()
        if head_dim < 2 or head_dim % 2:
            raise ValueError(f"head_dim={head_dim} with rotary positions: expected an even head size")
        self.head_dim = head_dim
        self.theta = theta

    def forward(self, positions: Tensor) -> Rotation:
        """(B or 1, T) -> the rotation of each position, computed finely because angles grow with the position."""
        fine = finest_dtype(positions.device)
        exponent = torch.arange(0, self.head_dim, 2, device=positions.device, dtype=fine) / self.head_dim
        angle = positions[:, None, :, None].to(fine) * self.theta**-exponent  # (B or 1, 1, T, D/2)
        return Rotation(angle.cos(), angle.sin())


class RelativeBias(nn.Module):
    """T5's bias (Raffel et al. 2020, section 2.1): one learned number for each head and bucket of distances.

    Half of the buckets hold one distance each; the rest grow with the logarithm up to `max_distance`. A bidirectional
    stack spends half of all buckets on keys ahead of the query.
    """

    def __init__(self, n_heads: int, *, n_buckets: int = 32, max_distance: int = 128, bidirectional: bool):
        super().__init__()
        if n_buckets < (4 if bidirectional else 2) or max_distance <= n_buckets // 2:
            raise ValueError(
                f"n_buckets={n_buckets}, max_distance={max_distance}: expected at least 2 buckets for each direction "
                "and a distance above half their number"
            )
        self.n_buckets = n_buckets
        self.max_distance = max_distance
        self.bidirectional = bidirectional
        self.weight = nn.Parameter(torch.empty(n_buckets, n_heads).normal_(std=0.02))

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Position numbers (B or 1, T) and (B or 1, S) -> (B or 1, H, T, S)."""
        return self.weight[self.bucket(_ahead(queries, keys))].permute(0, 3, 1, 2)  # (B, T, S, H) -> (B, H, T, S)

    def bucket(self, ahead: Tensor) -> Tensor:
        """The bucket of a key that lies `ahead` of (or, below zero, behind) the query."""
        n_buckets, offset = self.n_buckets, torch.zeros_like(ahead)
        if self.bidirectional:
            n_buckets //= 2
            offset = (ahead > 0) * n_buckets
            distance = ahead.abs()
        else:
            distance = (-ahead).clamp_min(0)
        n_exact = n_buckets // 2
        growth = torch.log(distance.clamp_min(1).float() / n_exact) / math.log(self.max_distance / n_exact)
        far = n_exact + (growth * (n_buckets - n_exact)).long()
        return offset + torch.where(distance < n_exact, distance, far.clamp_max(n_buckets - 1))


class Alibi(nn.Module):
    """Attention with linear biases (Press et al. 2022): a head's score falls by its own slope per token of distance."""

    def __init__(self, n_heads: int):
        super().__init__()
        check_positive("n_heads", n_heads)
        self.slopes = alibi_slopes(n_heads)
        self._tables: dict[torch.device, Tensor] = {}

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Position numbers (B or 1, T) and (B or 1, S) -> (B or 1, H, T, S), finely; the scores' dtype rounds it."""
        device, fine = queries.device, finest_dtype(queries.device)
        if device not in self._tables:  # made once: while a GPU records its kernels, nothing can be copied to it
            self._tables[device] = torch.tensor(self.slopes, dtype=fine, device=device)
        slopes = self._tables[device]
        return -slopes[:, None, None] * _ahead(queries, keys).abs().to(fine)[:, None]


def alibi_slopes(n_heads: int) -> list[float]:
    """2^(-8/n), 2^(-16/n), ... for a power of two; other counts add every second slope of the next power."""
    power = 2 ** math.floor(math.log2(n_heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    between = [2 ** (-4 * (i + 1) / power) for i in range(0, 2 * power, 2)]
    return slopes + between[: n_heads - power]


def finest_dtype(device: torch.device) -> torch.dtype:
    """float64, but on devices that have none."""
    return torch.float32 if device.type == "mps" else torch.float64


def _ahead(queries: Tensor, keys: Tensor) -> Tensor:
    """How far each key stands ahead of each query: (B or 1, T, S)."""
    return keys[:, None, :] - queries[:, :, None]
