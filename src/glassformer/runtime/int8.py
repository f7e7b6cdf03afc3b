"""A model with int8 weights, for writing on a CPU: a quarter of the bytes, several times the speed.

Weights are quantised once, by output channel; activations on the fly, by row. The model's code is the same: its linear
layers are swapped for others. Our kernel (`cpp/int8.h`) does the products; torch's own does where there are no kernels
of ours: without a compiler, or on a CPU without AVX-512's byte products.
"""

import copy
import itertools
import logging
import os
import platform
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from glassformer.kernels.cpp_library import X86, NoKernelsError, UnsupportedCPUError, cpu_kernels
from glassformer.models import Model
from glassformer.nn import FeedForward

CHANNELS = 32
"""The kernel computes this many outputs together, at most."""

AnyModel = TypeVar("AnyModel", bound=Model)
_LOG = logging.getLogger(__name__)


def quantise(model: AnyModel) -> AnyModel:
    """A copy of the model, in evaluation mode on the CPU, whose linear layers compute with int8.

    Its answers differ a little: an output of a layer is off by about one percent. Embeddings and norms stay as they
    are; so does the model that was given.
    """
    make = _backend()
    quantised = copy.deepcopy(model).cpu().float().eval()
    for module in list(quantised.modules()):
        if make is OurInt8Linear and isinstance(module, FeedForward):
            _join_relu(module)
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                setattr(module, name, make(child))
    return quantised


def _join_relu(network: FeedForward) -> None:
    """The ReLU behind a layer becomes part of it."""
    is_plain = network.gate_up_proj is None and network.gate_proj is None
    if is_plain and network.act is nn.functional.relu and type(network.up_proj) is nn.Linear:
        network.up_proj = OurInt8Linear(network.up_proj, relu=True)  # type: ignore[assignment]
        network.act = torch.positive  # as it is


class OurInt8Linear(nn.Module):
    """`nn.Linear` by our kernel, and a ReLU behind it where one is wanted."""

    def __init__(self, linear: nn.Linear, *, relu: bool = False):
        super().__init__()
        weight = linear.weight.detach().float()
        scales = (weight.abs().amax(1) / 127).clamp_min(1e-30)
        packed = cpu_kernels().pack((weight / scales[:, None]).round().to(torch.int8))
        bias = None if linear.bias is None else linear.bias.detach().float().clone()
        # Plain attributes, no buffers: a module looks those up slowly, and it is asked fifty times a token.
        self._weights = (
            packed,
            nn.functional.pad(scales, (0, -len(weight) % CHANNELS)),
            bias,
            *linear.weight.shape[::-1],
            relu,
        )
        self._linear = cpu_kernels().linear.default

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        y: Tensor = self._linear(x, *self._weights)
        return y


class Packed:
    """Weights in a layout of torch's, with a number by which a compiled step finds them: it cannot hold them itself."""

    def __init__(self, weights: Any):
        self.weights = weights
        self.number = next(_NUMBERS)
        _PACKED[self.number] = self

    def __deepcopy__(self, memo: dict[int, Any]) -> "Packed":
        return self  # nobody changes them

    def __reduce__(self) -> tuple[Any, ...]:
        return Packed, (self.weights,)  # in another process the number is another's


_NUMBERS = itertools.count()
_PACKED: "weakref.WeakValueDictionary[int, Packed]" = weakref.WeakValueDictionary()


@torch.library.custom_op("glassformer_packed::linear", mutates_args=())
def _linear_of(x: Tensor, number: int, n_out: int) -> Tensor:
    return _multiply(x, _PACKED[number].weights)


def _multiply(x: Tensor, weights: Any) -> Tensor:
    found: Tensor = torch.ops.quantized.linear_dynamic(x, weights, reduce_range=_sums_saturate())
    return found


@cache
def _sums_saturate() -> bool:
    """Whether torch's kernel adds pairs of products in 16 bits, as x86 does without VNNI. Products of 8 and 8 bits do
    not fit there; those of 7 and 8 do."""
    allowed = os.environ.get("FBGEMM_ENABLE_INSTRUCTIONS", "VNNI")  # limits FBGEMM to older instructions
    return platform.machine() in X86 and not (torch.cpu._is_vnni_supported() and allowed.upper().endswith("VNNI"))


@_linear_of.register_fake
def _(x: Tensor, number: int, n_out: int) -> Tensor:
    return x.new_empty(*x.shape[:-1], n_out)


class TorchInt8Linear(nn.Module):
    """`nn.Linear` by torch's own dynamically quantised kernel.

    The kernel has one scale for all activations, so each row is divided by its largest magnitude first.
    """

    def __init__(self, linear: nn.Linear, *, engine: str | None = None):
        super().__init__()
        weight = linear.weight.detach().float()
        scales = (weight.abs().amax(1) / 127).clamp_min(1e-30)
        zeros = torch.zeros(len(weight), dtype=torch.long)
        self._bias = None if linear.bias is None else linear.bias.detach().float().clone()
        self._n_out = len(weight)
        with _using(_torch_engine() if engine is None else engine), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch means to take these tensors away one day
            quantised = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
            self._packed = Packed(torch.ops.quantized.linear_prepack(quantised, None))

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        largest = x.abs().amax(-1, keepdim=True).clamp_min(1e-30)
        rows = (x / largest).nan_to_num()  # what is no number comes back with the scale, and to its own row alone
        if torch.compiler.is_compiling():
            y = _linear_of(rows, self._packed.number, self._n_out)
        else:
            y = _multiply(rows, self._packed.weights)
        y = y * largest
        return y if self._bias is None else y + self._bias


@cache
def _torch_engine() -> str:
    """The engine of torch whose int8 products run on this CPU, or nothing: what torch lists need not work."""
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


def _backend() -> type[OurInt8Linear] | type[TorchInt8Linear]:
    try:
        cpu_kernels()
    except NoKernelsError as error:
        if not _torch_engine():
            raise
        if not isinstance(error, UnsupportedCPUError):
            _warn_of(str(error))
        return TorchInt8Linear
    return OurInt8Linear


@cache
def _warn_of(reason: str) -> None:
    """Say once why torch's kernels are used."""
    _LOG.warning("int8 computes with torch's own kernels, which are slower: %s", reason)
