"""Position encodings: sinusoidal, learned, rotary, relative bias (T5) and ALiBi.

Sinusoidal and learned positions are added to the embeddings. Rotary positions rotate queries and keys. Relative bias
and ALiBi are added to the attention scores. Tables that are computed, not learned, are not part of `state_dict()`.

docs/extending.md lists the files to change for a new kind of position.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.kernels.kernel_set import KernelSet
from glassformer.nn.rotary_scaling import RotaryScaling, rotary_frequencies
from glassformer.nn.tensor_checks import check_positive


def sinusoids(length: int, width: int, *, halves: bool = False, full_range: bool = False) -> Tensor:
    """Return the sinusoidal table (length, width) of Vaswani et al. (2017, section 3.5) in float64.

    Columns 2i and 2i + 1 are sin and cos of position / 10000^(2i/width). The period is 2π tokens for i = 0 and about
    10000 · 2π for the last pair. An odd width ends with a sine. With `halves` all sines come before all cosines, as
    in Marian. With `full_range` the period of the last pair is 10000 · 2π exactly, as in fairseq and M2M100.
    """
    check_positive("width", width)
    position = torch.arange(length, dtype=torch.float64)[:, None]
    last = width - 2 if full_range else width
    rate = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / last)
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
    """Fixed sinusoidal positions, looked up in the table of `sinusoids`. The module has no parameters.

    The first token reads row `offset` of the table.
    """

    def __init__(self, max_len: int, width: int, *, halves: bool = False, full_range: bool = False, offset: int = 0):
        super().__init__()
        check_positive("max_len", max_len)
        self.max_len, self.width, self.halves, self.full_range, self.offset = max_len, width, halves, full_range, offset
        self._tables: dict[tuple[torch.dtype, torch.device], Tensor] = {}

    def forward(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the vectors of position numbers (B or 1, T) as (B or 1, T, C), rounded from float64 to `dtype`."""
        return self.rows(dtype, positions.device)[positions]

    def rows(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return the vectors of all positions, (max_len, C), rounded from float64 to `dtype`. They are cached."""
        key = dtype, device
        if key not in self._tables:
            self._tables[key] = self.table().to(dtype).to(device)
        return self._tables[key]

    def table(self) -> Tensor:
        """Return the vectors of all positions, (max_len, C), in float64."""
        length = self.max_len + self.offset
        return sinusoids(length, self.width, halves=self.halves, full_range=self.full_range)[self.offset :]


class LearnedPositions(nn.Module):
    """Learned positions: one vector per position below `max_len`.

    The table has `offset` unused rows at its start, as in BART's and RoBERTa's checkpoints.
    """

    def __init__(self, max_len: int, width: int, *, offset: int = 0):
        super().__init__()
        check_positive("max_len", max_len)
        self.offset = offset
        self.weight = nn.Parameter(torch.empty(max_len + offset, width).normal_(std=0.02))

    def forward(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the vectors of position numbers (B or 1, T) as (B or 1, T, C), cast to `dtype`."""
        places = positions + self.offset if self.offset else positions
        if not torch.is_grad_enabled():  # a faster kernel, which sums gradients in another order
            return F.embedding(places, self.weight).to(dtype)
        return self.weight[places].to(dtype)

    def rows(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return the vectors of all positions, (max_len, C), cast to `dtype`."""
        return self.weight[self.offset :].to(device, dtype)


class Rotation(NamedTuple):
    """Cosine and sine of the rotary angles of a batch's positions, each (B or 1, 1, T, R/2).

    R is the number of features that are rotated: the head size D, or less with partial rotary positions.
    """

    cos: Tensor
    sin: Tensor

    def rotate(self, x: Tensor, kernels: KernelSet | None = None) -> Tensor:
        """Return queries or keys x (B, H, T, D) with each pair (x[i], x[i + R/2]) rotated by its angle.

        Features from the R-th on stay as they are. `kernels` may compute it; None is plain torch.
        """
        width = 2 * self.cos.shape[-1]
        if width < x.shape[-1]:
            return torch.cat((self.rotate(x[..., :width]), x[..., width:]), dim=-1)
        if kernels is not None and kernels.has_row_kernels(x):
            return kernels.rotate(x, self.cos, self.sin)
        # As (B, T, H, D), which is the order in memory of projected queries and keys: then attention keeps this order,
        # and its output needs no copy when the heads are merged.
        first, second = x.transpose(1, 2).chunk(2, dim=-1)
        cos, sin = (table.transpose(1, 2).to(x.dtype) for table in self)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).transpose(1, 2)


class Rotary(nn.Module):
    """Rotary positions (Su et al. 2021): rotations of queries and keys by angles proportional to their positions.

    The product of a rotated query and key depends on their positions only through the distance between them.
    `head_dim` is the number of features that are rotated; `scaling` changes their frequencies.
    """

    def __init__(self, head_dim: int, *, theta: float = 10000.0, scaling: RotaryScaling | None = None):
        super().__init__()
        if head_dim < 2 or head_dim % 2:
            raise ValueError(f"head_dim={head_dim} with rotary positions: expected an even head size")
        self.head_dim = head_dim
        self.theta = theta
        self.scaling = scaling
        self._tables: dict[torch.device, Tensor] = {}

    def forward(self, positions: Tensor, kernels: KernelSet | None = None) -> Rotation:
        """Return the rotation for position numbers (B or 1, T).

        Angles are computed in float64 where the device has it, because float32 is inexact at large positions.
        `kernels` may compute their cosine and sine; None is plain torch.
        """
        device = positions.device
        if kernels is not None and kernels.can_find_angles(positions):
            cos, sin = kernels.find_angles(positions, self._cached_frequencies(device))  # (B or 1, 1, T, D/2)
        else:
            # The device itself can compute unscaled frequencies, so they need no table, which tracing would fill.
            is_scaled = self.scaling is not None
            frequencies = self._cached_frequencies(device) if is_scaled else self._frequencies(device)
            cos, sin = KernelSet().find_angles(positions, frequencies)
        if self.scaling is None or self.scaling.amplitude == 1.0:
            return Rotation(cos, sin)
        return Rotation(cos * self.scaling.amplitude, sin * self.scaling.amplitude)

    def _frequencies(self, device: torch.device) -> Tensor:
        """Return the frequencies, (D/2,), scaled if there is a scaling."""
        dtype = widest_float(device)
        if self.scaling is None:
            exponent = torch.arange(0, self.head_dim, 2, device=device, dtype=dtype) / self.head_dim
            return self.theta**-exponent
        values = self.scaling.scale(rotary_frequencies(self.head_dim, self.theta), self.theta)
        return torch.tensor(values, dtype=dtype, device=device)

    def _cached_frequencies(self, device: torch.device) -> Tensor:
        """Return the frequencies from a table: a CUDA graph cannot record the copy from the host of scaled ones."""
        if device not in self._tables:
            with torch.inference_mode(False):  # training may use them later
                self._tables[device] = self._frequencies(device)
        return self._tables[device]


class RelativeBias(nn.Module):
    """T5's relative bias (Raffel et al. 2020, section 2.1): one learned number per head and bucket of distances.

    A bidirectional stack uses half of the buckets for keys after the query and half for the others. A causal stack uses
    all buckets for keys at or before the query.
    In each direction, the first half of the buckets hold one distance each; the second half hold ranges that widen
    logarithmically up to `max_distance`.
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
        """Return the bias for query positions (B or 1, T) and key positions (B or 1, S) as (B or 1, H, T, S)."""
        bias = self.weight[self.bucket(_relative_positions(queries, keys))]  # (B, T, S, H)
        return bias.permute(0, 3, 1, 2)  # (B, H, T, S)

    def bucket(self, relative: Tensor) -> Tensor:
        """Return the bucket number of each relative position (key minus query), in the shape of `relative`."""
        n_buckets, offset = self.n_buckets, torch.zeros_like(relative)
        if self.bidirectional:
            n_buckets //= 2
            offset = (relative > 0) * n_buckets
            distance = relative.abs()
        else:
            distance = (-relative).clamp_min(0)
        n_exact = n_buckets // 2
        growth = torch.log(distance.clamp_min(1).float() / n_exact) / math.log(self.max_distance / n_exact)
        far = n_exact + (growth * (n_buckets - n_exact)).long()
        return offset + torch.where(distance < n_exact, distance, far.clamp_max(n_buckets - 1))


class Alibi(nn.Module):
    """Attention with linear biases (Press et al. 2022): scores decrease linearly with distance.

    Each head has its own slope.
    """

    def __init__(self, n_heads: int):
        super().__init__()
        check_positive("n_heads", n_heads)
        self.slopes = alibi_slopes(n_heads)
        self._tables: dict[torch.device, Tensor] = {}

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return the bias for query positions (B or 1, T) and key positions (B or 1, S) as (B or 1, H, T, S).

        The result is float64 where the device has it; the caller casts it to the dtype of the scores.
        """
        device, dtype = queries.device, widest_float(queries.device)
        if device not in self._tables:  # cached, because a CUDA graph cannot record a copy from the host
            self._tables[device] = torch.tensor(self.slopes, dtype=dtype, device=device)
        distance = _relative_positions(queries, keys).abs().to(dtype)  # (B or 1, T, S)
        return -self._tables[device][:, None, None] * distance[:, None]  # (B or 1, H, T, S)


def alibi_slopes(n_heads: int) -> list[float]:
    """Return the ALiBi slope of each head: 2^(-8/n), 2^(-16/n), ..., 2^-8 if n = `n_heads` is a power of two.

    Otherwise, let p be the next lower power of two. The list then holds the slopes for p heads, followed by the first,
    third, fifth, ... slope for 2p heads, until there are `n_heads` of them.
    """
    power = 2 ** math.floor(math.log2(n_heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    between = [2 ** (-4 * (i + 1) / power) for i in range(0, 2 * power, 2)]
    return slopes + between[: n_heads - power]


def widest_float(device: torch.device) -> torch.dtype:
    """Return float64, or float32 on devices that have no float64 (MPS)."""
    return torch.float32 if device.type == "mps" else torch.float64


def _relative_positions(queries: Tensor, keys: Tensor) -> Tensor:
    """Return key position minus query position for every pair: (B or 1, T), (B or 1, S) -> (B or 1, T, S)."""
    return keys[:, None, :] - queries[:, :, None]  # (B or 1, T, S)
