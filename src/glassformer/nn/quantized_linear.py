"""Linear layers with int8 weights, computed by our C++ kernel or, where that does not run, by torch's.

`int8_layer_class` chooses between the two. `Int8Linear` calls the matrix product in `kernels/cpp/int8.h`;
`TorchInt8Linear` is the fallback. Weights are quantized once, with one scale per output channel; activations are
quantized in each call, with one scale per token vector.
"""

import itertools
import os
import platform
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.kernels.cpp_kernels import INT8_CHANNELS
from glassformer.kernels.cpp_library import X86, KernelBuildError
from glassformer.kernels.kernel_registry import cpp_kernels, warn_of_fallback


class Int8Linear(nn.Module):
    """`nn.Linear` with int8 weights, computed by our C++ kernel.

    With `relu=True` the kernel applies a ReLU to the output.
    """

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
        self._linear = cpp_kernels().operations.linear.default

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the layer for x: (..., in_features) -> (..., out_features)."""
        y: Tensor = self._linear(x, *self._weights)
        return y


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
    """

    def __init__(self, weights: Any):
        self.weights = weights
        self.number = next(_NUMBERS)
        _BY_NUMBER[self.number] = self

    def __deepcopy__(self, memo: dict[int, Any]) -> "PackedWeights":
        return self  # immutable

    def __reduce__(self) -> tuple[Any, ...]:
        return PackedWeights, (self.weights,)  # in another process the number may be taken


_NUMBERS = itertools.count()
_BY_NUMBER: "weakref.WeakValueDictionary[int, PackedWeights]" = weakref.WeakValueDictionary()


@torch.library.custom_op("glassformer_packed::linear", mutates_args=())
def _linear_of(x: Tensor, number: int, n_out: int) -> Tensor:
    return _multiply(x, _BY_NUMBER[number].weights)


def _multiply(x: Tensor, weights: Any) -> Tensor:
    found: Tensor = torch.ops.quantized.linear_dynamic(x, weights, reduce_range=_sums_saturate())
    return found


@cache
def _sums_saturate() -> bool:
    """Return whether torch's kernel adds pairs of products in 16 bits, as it does on x86 CPUs without VNNI.

    The sum of two products of 8-bit numbers can overflow 16 bits, so `_multiply` then limits activations to 7 bits.
    """
    allowed = os.environ.get("FBGEMM_ENABLE_INSTRUCTIONS", "VNNI")  # limits FBGEMM to older instructions
    return platform.machine() in X86 and not (torch.cpu._is_vnni_supported() and allowed.upper().endswith("VNNI"))


@_linear_of.register_fake
def _(x: Tensor, number: int, n_out: int) -> Tensor:
    return x.new_empty(*x.shape[:-1], n_out)


class TorchInt8Linear(nn.Module):
    """`nn.Linear` computed by torch's own dynamic int8 kernel.

    The kernel uses one scale for all activations, so each token vector is first divided by its largest magnitude.
    """

    def __init__(self, linear: nn.Linear, *, engine: str | None = None):
        super().__init__()
        weight = linear.weight.detach().float()
        scales = (_largest_magnitudes(weight) / 127).clamp_min(1e-30)
        zeros = torch.zeros(len(weight), dtype=torch.long)
        self._bias = None if linear.bias is None else linear.bias.detach().float().clone()
        self._n_out = len(weight)
        with _using(torch_int8_engine() if engine is None else engine), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch deprecates quantized tensors
            quantized = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
            self._packed = PackedWeights(torch.ops.quantized.linear_prepack(quantized, None))

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the layer for x: (..., in_features) -> (..., out_features)."""
        largest = x.abs().amax(-1, keepdim=True).clamp_min(1e-30)
        rows = (x / largest).nan_to_num()  # `largest` brings NaN and infinity back, in their own row only
        if torch.compiler.is_compiling():
            y = _linear_of(rows, self._packed.number, self._n_out)
        else:
            y = _multiply(rows, self._packed.weights)
        y = y * largest
        return y if self._bias is None else y + self._bias


def int8_layer_class() -> type[Int8Linear] | type[TorchInt8Linear]:
    """Return the int8 layer class that runs on this machine: `Int8Linear`, or `TorchInt8Linear` as the fallback.

    The fallback is for machines where our C++ kernels cannot be built or run, such as without a compiler or without
    AVX-512 VNNI. Raises KernelBuildError if neither runs.
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
    """Return the name of a torch quantization engine whose int8 products run on this CPU, or "" if there is none.

    Each engine is tried on a small layer, because engines that torch lists may still fail.
    """
    for engine in dict.fromkeys((torch.backends.quantized.engine, *torch.backends.quantized.supported_engines)):
        try:
            found = TorchInt8Linear(nn.Linear(4, 4), engine=engine)(torch.zeros(1, 4))
        except RuntimeError:
            continue
        if found.shape == (1, 4):
            return str(engine)
    return ""


@contextmanager
def _using(engine: str) -> Iterator[None]:
    usual = torch.backends.quantized.engine
    torch.backends.quantized.engine = engine
    try:
        yield
    finally:
        torch.backends.quantized.engine = usual
