"""Linear layers with int8 weights, computed by our C++ kernel or, where that does not run, by torch's.

`int8_layer_class` chooses between the two. `Int8Linear` calls the matrix product in `kernels/cpp/int8.h`;
`TorchInt8Linear` is the fallback. Weights are quantized once, with one scale per output channel; activations are
quantized in each call, with one scale per token vector.

An activation takes one byte or two (`ActivationBytes`). The second byte holds what the first leaves over, with a scale
of its own. It costs a second product. Decoders need it, because their token vectors have outliers: one byte then leaves
few levels for the other numbers.
"""

import itertools
import os
import platform
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor, nn
from typing_extensions import override

from glassformer.kernels.cpp_kernels import INT8_CHANNELS
from glassformer.kernels.cpp_library import X86, KernelBuildError
from glassformer.kernels.kernel_registry import cpp_kernels, warn_of_fallback
from glassformer.kernels.packed_for_cpu import PackedForCPU

ActivationBytes = Literal[1, 2]


class Int8Linear(PackedForCPU, nn.Module):
    """`nn.Linear` with int8 weights, computed by our C++ kernel.

    With `relu=True` the kernel applies a ReLU to the output.
    """

    activation_bytes: ActivationBytes

    def __init__(self, linear: nn.Linear, *, relu: bool = False):
        super().__init__()
        weight = linear.weight.detach().float()
        scales = (_largest_magnitudes(weight) / 127).clamp_min(1e-30)
        packed = cpp_kernels().pack_int8(_round_to_int8(weight, scales))
        bias = None if linear.bias is None else linear.bias.detach().float().clone()
        # Plain attributes instead of buffers, whose lookup is slow: a step calls about fifty such layers.
        self._weights = (
            packed,
            nn.functional.pad(scales, (0, -len(weight) % INT8_CHANNELS)),
            bias,
            *linear.weight.shape[::-1],
            relu,
        )
        self.set_activation_bytes(1)

    def set_activation_bytes(self, count: ActivationBytes) -> None:
        """Set how many bytes an activation takes: 1 at first."""
        self.activation_bytes = count
        self._find_function()

    @override
    def _find_function(self) -> None:
        operations = cpp_kernels().operations
        self._linear = (operations.linear if self.activation_bytes == 1 else operations.two_byte_linear).default

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the layer for x: (..., in_features) -> (..., out_features)."""
        y: Tensor = self._linear(x, *self._weights)
        return y

    def bound_outputs(self, size: float) -> Tensor:
        """Return a bound of each output's magnitude, for inputs whose magnitudes add up to at most `size`: (out,)."""
        _, scales, bias, _, n_out, _ = self._weights
        return _bound_outputs(scales[:n_out], bias, size)


def _bound_outputs(scales: Tensor, bias: Tensor | None, size: float) -> Tensor:
    # Rounding doubles a magnitude at most.
    found = scales * (127 * 2 * size)
    return found if bias is None else found + bias.abs()


def _largest_magnitudes(weight: Tensor) -> Tensor:
    """Return the largest magnitude of each row of the weights (out, in), without a copy of them."""
    least, largest = weight.aminmax(dim=1)
    return torch.maximum(-least, largest)


def _round_to_int8(weight: Tensor, scales: Tensor) -> Tensor:
    """Return the weights (out, in) divided by the scales (out,) and rounded to int8.

    They are computed in blocks of rows, because the float quotients of a large vocabulary take much memory.
    """
    rounded = torch.empty(weight.shape, dtype=torch.int8)
    for rows in range(0, len(weight), 1024):
        block = slice(rows, rows + 1024)
        rounded[block] = (weight[block] / scales[block, None]).round_()
    return rounded


class PackedWeights:
    """Weights in torch's packed int8 layout, registered under a number.

    A compiled graph cannot hold the packed object, so it stores the number and looks the weights up by it.
    `highest` is the largest activation that torch's kernel multiplies without overflow: 127 or 63.
    """

    def __init__(self, weights: Any, highest: int):
        self.weights = weights
        self.highest = highest
        self.number = next(_NUMBERS)
        _BY_NUMBER[self.number] = self

    def __deepcopy__(self, memo: dict[int, Any]) -> "PackedWeights":
        return self  # immutable

    def __reduce__(self) -> tuple[Any, ...]:
        return PackedWeights, (self.weights, self.highest)  # in another process the number may be taken


_NUMBERS = itertools.count()
_BY_NUMBER: "weakref.WeakValueDictionary[int, PackedWeights]" = weakref.WeakValueDictionary()


@torch.library.custom_op("glassformer_packed::linear", mutates_args=())
def _linear_of(x: Tensor, number: int, n_out: int) -> Tensor:
    return _multiply(x, _BY_NUMBER[number])


@_linear_of.register_fake
def _(x: Tensor, number: int, n_out: int) -> Tensor:
    return x.new_empty(*x.shape[:-1], n_out)


def _multiply(x: Tensor, packed: PackedWeights) -> Tensor:
    found: Tensor = torch.ops.quantized.linear_dynamic(x, packed.weights, reduce_range=packed.highest < 127)
    return found


class TorchInt8Linear(nn.Module):
    """`nn.Linear` computed by torch's own dynamic int8 kernel.

    torch's kernel derives one scale for all rows from their lowest and highest number. So the rows are quantized here,
    each by its own scale, to whole numbers from -127 to 127, or from -63 to 63 where torch's kernel would overflow. Two
    more rows fix the range that torch finds, so that its scale is exactly 1. The weights have the scale 1 too. So torch
    rounds nothing, its sums are exact, and a row's output does not depend on the other rows.
    """

    activation_bytes: ActivationBytes = 1

    def __init__(self, linear: nn.Linear, *, engine: str | None = None):
        super().__init__()
        engine = torch_int8_engine() if engine is None else engine
        weight = linear.weight.detach().float()
        self._scales = (_largest_magnitudes(weight) / 127).clamp_min(1e-30)
        self._bias = None if linear.bias is None else linear.bias.detach().float().clone()
        self._packed = _pack(weight / self._scales[:, None], engine, _highest_level(engine))
        self._range = _range_rows(self._packed.highest, weight.shape[1])

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the layer for x: (..., in_features) -> (..., out_features)."""
        rows = x.reshape(-1, x.shape[-1])
        y, rounded = self._multiply_one_byte(rows)
        if self.activation_bytes == 2:
            y = y + self._multiply_one_byte(rows - rounded)[0]
        y = y if self._bias is None else y + self._bias
        return y.reshape(*x.shape[:-1], len(self._scales))

    def set_activation_bytes(self, count: ActivationBytes) -> None:
        """Set how many bytes an activation takes: 1 at first."""
        self.activation_bytes = count

    def bound_outputs(self, size: float) -> Tensor:
        """Return a bound of each output's magnitude, for inputs whose magnitudes add up to at most `size`: (out,)."""
        return _bound_outputs(self._scales, self._bias, size)

    def _multiply_one_byte(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the product of rows (N, in), rounded to one byte each, with the weights, and the rounded rows."""
        highest = self._packed.highest
        largest = rows.abs().amax(-1, keepdim=True).clamp_min(1e-30)
        wholes = (rows * (highest / largest)).round().nan_to_num(posinf=0, neginf=0)
        ranged = torch.cat([wholes, self._range])
        if torch.compiler.is_compiling():
            sums = _linear_of(ranged, self._packed.number, len(self._scales))
        else:
            sums = _multiply(ranged, self._packed)
        # `largest` brings NaN and infinity back, in their own row only.
        return sums[:-2] * self._scales * (largest / highest), wholes * (largest / highest)


def _pack(wholes: Tensor, engine: str, highest: int) -> PackedWeights:
    """Return weights (out, in), which are rounded to whole numbers, in the layout of a torch engine."""
    ones, zeros = torch.ones(len(wholes)), torch.zeros(len(wholes), dtype=torch.long)
    with _using(engine), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch deprecates quantized tensors
        quantized = torch.quantize_per_channel(wholes, ones, zeros, 0, torch.qint8)
        return PackedWeights(torch.ops.quantized.linear_prepack(quantized, None), highest)


def _range_rows(highest: int, n_in: int) -> Tensor:
    """Return two rows with the lowest and the highest number that fill torch's range of 8 or 7 bits at a scale of 1."""
    return torch.tensor([[-highest], [highest + 1]], dtype=torch.float32).repeat(1, n_in)


@cache
def _highest_level(engine: str) -> int:
    """Return the largest activation that a torch engine multiplies exactly: 127, 63, or 0 if it cannot be used.

    Each is tried with the largest sums and with several numbers of rows. Of the engines that torch 2.13 lists on ARM,
    two raise an error, and `onednn` returns wrong sums after the number of rows has changed.
    """
    for highest in (63,) if _sums_saturate() else (127, 63):
        try:
            if _is_exact(engine, highest):
                return highest
        except RuntimeError:
            continue
    return 0


def _is_exact(engine: str, highest: int) -> bool:
    weight = torch.full((9, 70), 127.0)
    weight[:, ::7] = -127
    packed = _pack(weight, engine, highest)
    for n_rows in (1, 5):
        x = torch.full((n_rows, 70), float(highest))
        x[:, ::5] = -highest
        x = torch.cat([x, _range_rows(highest, 70)])
        if not torch.equal(_multiply(x, packed), x @ weight.T):
            return False
    return True


@cache
def _sums_saturate() -> bool:
    """Return whether torch's kernel adds pairs of products in 16 bits, as it does on x86 CPUs without VNNI.

    The sum of two products of 8-bit numbers can overflow 16 bits, so activations then have 7 bits.
    """
    allowed = os.environ.get("FBGEMM_ENABLE_INSTRUCTIONS", "VNNI")  # limits FBGEMM to older instructions
    return platform.machine() in X86 and not (torch.cpu._is_vnni_supported() and allowed.upper().endswith("VNNI"))


def int8_layer_class() -> type[Int8Linear] | type[TorchInt8Linear]:
    """Return the int8 layer class that runs on this machine: `Int8Linear`, or `TorchInt8Linear` as the fallback.

    The fallback is for machines where our C++ kernels cannot be built or run, such as without a compiler or without
    AVX2. Raises KernelBuildError if neither runs.
    """
    try:
        cpp_kernels()
    except KernelBuildError as error:
        if not torch_int8_engine():
            raise
        warn_of_fallback(error)
        return TorchInt8Linear
    return Int8Linear


@cache
def torch_int8_engine() -> str:
    """Return the name of a torch quantization engine whose int8 products are exact here, or "" if there is none."""
    engines = dict.fromkeys((torch.backends.quantized.engine, *torch.backends.quantized.supported_engines))
    return next((str(engine) for engine in engines if _highest_level(engine)), "")


@contextmanager
def _using(engine: str) -> Iterator[None]:
    usual = torch.backends.quantized.engine
    torch.backends.quantized.engine = engine
    try:
        yield
    finally:
        torch.backends.quantized.engine = usual
