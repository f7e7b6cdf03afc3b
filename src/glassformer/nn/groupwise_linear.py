"""Linear layers and token embeddings whose weights are quantized in groups of 32 inputs, with 4 or 8 bits.

The weights are a `GroupwiseMatrix`, computed by our C++ kernel where it runs and by plain torch elsewhere.
`quantize_rows` rounds float weights to such groups.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from glassformer.kernels.groupwise_matrix import (
    GROUP_SIZE,
    Bits,
    GroupwiseFormat,
    GroupwiseMatrix,
    GroupwiseRows,
    groupwise_matrix_class,
)

WEIGHTS_AT_ONCE = 1 << 20
"""About how many weights are quantized at once, so that a large matrix needs little memory besides its own."""
LEAST_IN_HALF, MOST_IN_HALF = 1e-2, 1e4
"""If a row's largest magnitude is outside this range, scales are stored in float32 instead of float16."""
CLIPPED_SHARES = (1.0, 0.92, 0.84)
"""The shares of a group's range that its 4-bit codes may cover. The share with the least error is chosen."""
FITS = 2
"""How often 4-bit weights are rounded and scales fitted to them. Twice has 5 % less squared error than once."""


class GroupwiseLinear(nn.Module):
    """`nn.Linear` with the weights of a `GroupwiseMatrix`."""

    def __init__(self, matrix: GroupwiseMatrix, bias: Tensor | None = None):
        super().__init__()
        self.matrix = matrix
        self.in_features, self.out_features = matrix.n_in, matrix.n_out
        self._bias = None if bias is None else bias.detach().float().clone()

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the layer for x: (..., in_features) -> (..., out_features)."""
        return self.matrix.multiply(x, self._bias)

    def bound_outputs(self, size: float) -> Tensor:
        """Return a bound of each output's magnitude, for inputs whose magnitudes add up to at most `size`: (out,)."""
        weights = self.matrix.read_rows(torch.arange(self.out_features))
        found = weights.abs().amax(1) * (2 * size)  # rounding doubles a magnitude at most
        return found if self._bias is None else found + self._bias.abs()


class GroupwiseEmbedding(nn.Module):
    """`nn.Embedding` with the weights of a `GroupwiseMatrix`, which a tied output layer may share."""

    def __init__(self, matrix: GroupwiseMatrix):
        super().__init__()
        self.matrix = matrix
        self.num_embeddings, self.embedding_dim = matrix.n_out, matrix.n_in

    def forward(self, ids: Tensor) -> Tensor:
        """Return the vectors of token ids in float32: (...) -> (..., embedding_dim)."""
        return self.matrix.read_rows(ids)


def quantized_linear(linear: nn.Linear, bits: Bits) -> GroupwiseLinear:
    """Return a float layer rounded to groups of 4-bit codes with minimums, or of 8-bit codes without."""
    weight = linear.weight.detach()
    form = GroupwiseFormat(bits, has_mins=bits == 4, number_dtype=number_dtype_for(weight))
    matrix = groupwise_matrix_class()(linear.out_features, linear.in_features, form)
    step = max(1, WEIGHTS_AT_ONCE // weight.shape[1])
    for first in range(0, len(weight), step):
        matrix.write_rows(first, quantize_rows(weight[first : first + step], form))
    return GroupwiseLinear(matrix, linear.bias)


def number_dtype_for(weight: Tensor) -> torch.dtype:
    """Return the dtype for scales and minimums: float16, or float32 for weights beyond what float16 holds well."""
    top = weight.abs().amax(1)
    is_usual = ((top > LEAST_IN_HALF) & (top < MOST_IN_HALF)) | (top == 0)
    return torch.float16 if bool(is_usual.all()) else torch.float32


def quantize_rows(weight: Tensor, form: GroupwiseFormat) -> GroupwiseRows:
    """Round rows of float weights (rows, n_in) to groups: of 4-bit codes with minimums, or 8-bit codes without.

    A group of 8-bit codes reaches to its largest magnitude. A group of 4-bit codes reaches from its lowest to its
    highest weight, or over a part of that range if this gives a smaller squared error.
    """
    if form.has_mins != (form.bits == 4):
        raise ValueError(f"{form}: expected 4 bits with minimums, or 8 bits without")
    groups = pad(weight.float(), (0, -weight.shape[1] % GROUP_SIZE)).view(len(weight), -1, GROUP_SIZE)
    if form.bits == 8:
        scales = (groups.abs().amax(2) / 127).to(form.number_dtype).float()
        return GroupwiseRows(_codes(groups, scales[:, :, None], -127, 127).to(torch.int8).flatten(1), scales)
    codes, scales, mins, error = _round_to_nibbles(groups, CLIPPED_SHARES[0], form.number_dtype)
    for share in CLIPPED_SHARES[1:]:
        found = _round_to_nibbles(groups, share, form.number_dtype)
        is_better = found[3] < error
        codes = torch.where(is_better[:, :, None], found[0], codes)
        scales, mins, error = (
            torch.where(is_better, new, old) for new, old in zip(found[1:], (scales, mins, error), strict=True)
        )
    return GroupwiseRows(codes.flatten(1), scales, mins)


def _round_to_nibbles(groups: Tensor, share: float, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Round groups (rows, G, 32) to 16 steps over this share of their ranges.

    Return the codes, scales, minimums, and the sum of squared errors of each group. Scales and minimums are those that
    fit the codes best (least squares), rounded to `dtype`. The codes are then rounded once more, by these.
    """
    low, high = groups.aminmax(dim=2, keepdim=True)
    scales, mins = (high - low) * (share / 15), low + (high - low) * ((1 - share) / 2)
    mean = groups.mean(2, keepdim=True)
    for _ in range(FITS):
        codes = _codes(groups - mins, scales, 0, 15)
        mean_code = codes.mean(2, keepdim=True)
        centered = codes - mean_code
        spread = centered.square().sum(2, keepdim=True)
        # A constant group has only one code. Its scale does not matter.
        scales = torch.where(spread > 0, (centered * groups).sum(2, keepdim=True) / spread, 0).to(dtype).float()
        mins = (mean - scales * mean_code).to(dtype).float()
    error = (groups - scales * codes - mins).square().sum(2)
    return codes.to(torch.int8), scales[:, :, 0], mins[:, :, 0], error


def _codes(groups: Tensor, scales: Tensor, least: int, most: int) -> Tensor:
    """Return the codes of numbers as floats. Where the scale is 0, so are the codes."""
    return (groups / scales).nan_to_num(0, 0, 0).round().clamp(least, most)
