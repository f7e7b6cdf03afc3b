"""Matrices with 4-bit or 8-bit weights quantized in groups of 32 inputs, and products of activations with them.

A group of one output channel has a scale and, in some formats, a minimum: weight = scale * code + minimum. This holds
the formats Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K and Q8_0 of GGUF files exactly. A product quantizes its activations to
15 bits, with one scale per row and group. A row has the same result, bit for bit, in any batch.

`GroupwiseMatrix` computes in plain torch, `CppGroupwiseMatrix` by the kernel in `cpp/groupwise.h`.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from typing_extensions import override

from glassformer.kernels.cpp_library import KernelBuildError
from glassformer.kernels.kernel_registry import cpp_kernels, warn_of_fallback
from glassformer.kernels.packed_for_cpu import PackedForCPU

GROUP_SIZE = 32
MOST = 127 * 128
"""The largest quantized activation. It is the sum of two numbers that a byte holds: 128 * high + low."""
LEAST_TOP = 1e-30
"""A group of activations whose largest magnitude is below this counts as zeros."""
MAX_PARTIAL_SUMS = 1 << 22
"""The most sums of groups, before they are added up, that the plain product holds at once."""

Bits = Literal[4, 8]


@dataclass(frozen=True)
class GroupwiseFormat:
    """How the groups of a matrix are stored.

    Codes of 4 bits are 0 to 15 with minimums and -8 to 7 without; codes of 8 bits are -128 to 127.
    """

    bits: Bits
    has_mins: bool
    number_dtype: torch.dtype = torch.float16
    """The dtype of scales and minimums, float16 or float32."""


@dataclass(frozen=True)
class GroupwiseRows:
    """Some rows of a quantized matrix, in the form in which they are written into a `GroupwiseMatrix`."""

    codes: Tensor
    """(rows, groups * 32) int8."""
    scales: Tensor
    """(rows, groups) float32."""
    mins: Tensor | None = None
    """(rows, groups) float32, or None for a format without minimums."""

    def dequantized(self) -> Tensor:
        """Return the values of the weights in float32: (rows, groups * 32)."""
        groups = self.codes.view(*self.scales.shape, GROUP_SIZE).float() * self.scales[:, :, None]
        groups = groups if self.mins is None else groups + self.mins[:, :, None]
        return groups.flatten(1)


class GroupwiseMatrix:
    """A matrix (n_out, n_in) of quantized weights, in plain torch. It is filled by `write_rows`, in any order.

    If `n_in` is no multiple of 32, the last group of each row is padded.
    """

    def __init__(self, n_out: int, n_in: int, form: GroupwiseFormat):
        self.n_out, self.n_in, self.form = n_out, n_in, form
        self.n_groups = -(-n_in // GROUP_SIZE)
        self._allocate()

    def _allocate(self) -> None:
        bytes_per_group = GROUP_SIZE * self.form.bits // 8
        self._codes = torch.zeros(self.n_out, self.n_groups, bytes_per_group, dtype=torch.int8)
        self._scales = torch.zeros(self.n_out, self.n_groups, dtype=self.form.number_dtype)
        self._mins = torch.zeros_like(self._scales) if self.form.has_mins else None

    @property
    def nbytes(self) -> int:
        """The bytes of memory that the matrix takes."""
        return sum(part.nbytes for part in (self._codes, self._scales, self._mins) if part is not None)

    def write_rows(self, first: int, rows: GroupwiseRows) -> None:
        """Replace the rows from number `first` on."""
        last = first + len(rows.codes)
        codes = rows.codes.view(-1, self.n_groups, GROUP_SIZE)
        if self.form.bits == 4:  # the low half of a byte holds input i, the high half input i + 16
            low, high = codes.bitwise_and(15).chunk(2, -1)
            codes = low | high << 4
        self._codes[first:last] = codes
        self._scales[first:last] = rows.scales.to(self.form.number_dtype)
        if self._mins is not None:
            assert rows.mins is not None
            self._mins[first:last] = rows.mins.to(self.form.number_dtype)

    def read_rows(self, rows: Tensor) -> Tensor:
        """Return the weights of these rows, an int64 tensor (...), in float32: (..., n_in)."""
        which = rows.flatten()
        mins = None if self._mins is None else self._mins[which].float()
        found = GroupwiseRows(self._wide_codes(which).flatten(1), self._scales[which].float(), mins).dequantized()
        return found[:, : self.n_in].reshape(*rows.shape, self.n_in)

    def multiply(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return x Wᵀ + bias, with x quantized by row and group: (..., n_in) -> (..., n_out)."""
        rows = x.reshape(-1, self.n_in)
        codes = self._wide_codes(slice(None)).float().permute(1, 2, 0)  # (groups, 32, out)
        scales, mins = (None if part is None else part.float().T for part in (self._scales, self._mins))
        assert scales is not None
        together = max(1, MAX_PARTIAL_SUMS // (self.n_groups * self.n_out))
        parts = [self._multiply_some(some, codes, scales, mins) for some in torch.split(rows, together)]
        y = torch.cat(parts) if parts else rows.new_empty(0, self.n_out)
        y = y if bias is None else y + bias
        return y.view(*x.shape[:-1], self.n_out)

    def _multiply_some(self, x: Tensor, codes: Tensor, scales: Tensor, mins: Tensor | None) -> Tensor:
        """Multiply rows (N, n_in) by all weights: codes (G, 32, out), scales and minimums (G, out)."""
        groups = pad(x, (0, self.n_groups * GROUP_SIZE - self.n_in)).view(len(x), self.n_groups, GROUP_SIZE)
        top = groups.abs().amax(2)  # (N, G)
        inverse = torch.where(top > LEAST_TOP, torch.full_like(top, MOST) / top, 0)
        wholes = (groups * inverse[:, :, None]).nan_to_num(0).round()
        high = (wholes / 128).round()
        x_scales = top / MOST
        # The products of high and low parts are exact in float32, whatever the order of the additions.
        low_sums = torch.matmul((wholes - 128 * high).transpose(0, 1), codes)  # (G, N, out)
        sums = torch.matmul(high.transpose(0, 1), codes).mul_(128).add_(low_sums)
        x_sums = x_scales * wholes.sum(2)
        total = x.new_zeros(len(x), self.n_out)
        # The order of these additions is fixed, so that a row's result does not depend on the number of rows.
        for group in range(self.n_groups):
            total += sums[group] * (scales[group] * x_scales[:, group, None])
            if mins is not None:
                total += mins[group] * x_sums[:, group, None]
        return total

    def _wide_codes(self, rows: Tensor | slice) -> Tensor:
        """Return the codes of these rows, one per byte: (rows, groups, 32)."""
        codes = self._codes[rows]
        if self.form.bits == 8:
            return codes
        low, high = codes & 15, codes >> 4 & 15
        if not self.form.has_mins:  # restore the sign
            low, high = (low ^ 8) - 8, (high ^ 8) - 8
        return torch.cat([low, high], -1)


class CppGroupwiseMatrix(PackedForCPU, GroupwiseMatrix):
    """The same, in the packed layout of the C++ kernel and computed by it."""

    @override
    def _allocate(self) -> None:
        form = self.form
        is_half = form.number_dtype == torch.float16
        size = _operations().groupwise_size(self.n_in, self.n_out, form.bits, form.has_mins, is_half)
        # NumPy's memory, because torch's allocator rounds sizes up: a model of 135M weights took 35 % more.
        self._packed = torch.from_numpy(np.zeros(size, np.uint8))
        self._shape = (self.n_in, self.n_out, form.bits, form.has_mins, is_half)
        self._find_function()

    @override
    def _find_function(self) -> None:
        # Looked up once: a step multiplies more than a hundred times.
        self._linear = _operations().groupwise_linear.default

    @property
    @override
    def nbytes(self) -> int:
        return self._packed.nbytes

    @override
    def write_rows(self, first: int, rows: GroupwiseRows) -> None:
        dtype, n_in, n_out = self.form.number_dtype, self.n_in, self.n_out
        mins = None if rows.mins is None else rows.mins.to(dtype)
        _operations().groupwise_pack_rows(
            self._packed, rows.codes, rows.scales.to(dtype), mins, first, n_in, n_out, self.form.bits
        )

    @override
    def read_rows(self, rows: Tensor) -> Tensor:
        found: Tensor = _operations().groupwise_read_rows(self._packed, rows, *self._shape)
        return found

    @override
    def multiply(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        y: Tensor = self._linear(x, self._packed, bias, *self._shape)
        return y


def groupwise_matrix_class() -> type[GroupwiseMatrix]:
    """Return the class for this CPU: `CppGroupwiseMatrix`, or `GroupwiseMatrix` where the kernels cannot run."""
    try:
        _operations()
    except KernelBuildError as error:
        warn_of_fallback(error)
        return GroupwiseMatrix
    return CppGroupwiseMatrix


@cache
def _operations() -> Any:
    """Return the operations of the C++ library, after telling `torch.compile` the shapes that they return."""
    operations = cpp_kernels().operations
    torch.library.register_fake("glassformer_cpu::groupwise_linear", _fake_linear)
    torch.library.register_fake("glassformer_cpu::groupwise_read_rows", _fake_read_rows)
    return operations


def _fake_linear(x: Tensor, packed: Tensor, bias: Tensor | None, n_in: int, n: int, *_: Any) -> Tensor:
    return x.new_empty(*x.shape[:-1], n)


def _fake_read_rows(packed: Tensor, rows: Tensor, n_in: int, *_: Any) -> Tensor:
    return packed.new_empty(*rows.shape, n_in, dtype=torch.float32)
