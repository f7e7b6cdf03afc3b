"""A model with int8 weights, for writing on a CPU: a quarter of the bytes, several times the speed.

Weights are quantised once, by output channel; activations on the fly, by row. The model's code is the same: its linear
layers are swapped for others. On x86 torch's own kernel does the products. On ARM torch has none that is fast, so ours
(`int8_arm.cpp`) is compiled when it is first needed and kept.
"""

import copy
import hashlib
import itertools
import os
import platform
import shutil
import subprocess
import tempfile
import weakref
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from glassformer.data.corpora import cache_folder
from glassformer.models import Model

SOURCE = Path(__file__).with_name("int8_arm.cpp")
FLAGS = ("-O3", "-std=c++20", "-shared", "-fPIC", "-fopenmp", "-march=armv8.2-a+dotprod")
MANY = 16
"""From so many rows on, torch's other kernel is the faster one."""
CHANNELS = 8
"""The ARM kernel computes this many outputs together."""

AnyModel = TypeVar("AnyModel", bound=Model)


class NoInt8Error(RuntimeError):
    """This machine has no fast int8 products."""


def quantise(model: AnyModel) -> AnyModel:
    """A copy of the model, in evaluation mode on the CPU, whose linear layers compute with int8.

    Its answers differ a little: an output of a layer is off by about one percent. Embeddings and norms stay as they
    are; so does the model that was given.
    """
    make = _backend()
    quantised = copy.deepcopy(model).cpu().float().eval()
    for module in list(quantised.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                setattr(module, name, make(child))
    return quantised


class ArmInt8Linear(nn.Module):
    """`nn.Linear` by our ARM kernel."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        weight = linear.weight.detach().float()
        scales = (weight.abs().amax(1) / 127).clamp_min(1e-30)
        packed = _arm_kernel().pack((weight / scales[:, None]).round().to(torch.int8))
        bias = None if linear.bias is None else linear.bias.detach().float().clone()
        # Plain attributes, no buffers: a module looks those up slowly, and it is asked fifty times a token.
        self._weights = packed, nn.functional.pad(scales, (0, -len(weight) % CHANNELS)), bias, len(weight)
        self._linear = _arm_kernel().linear.default

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
    found: Tensor = torch.ops.quantized.linear_dynamic(x, _PACKED[number].weights)
    return found


@_linear_of.register_fake
def _(x: Tensor, number: int, n_out: int) -> Tensor:
    return x.new_empty(*x.shape[:-1], n_out)


class TorchInt8Linear(nn.Module):
    """`nn.Linear` by torch's own dynamically quantised kernels.

    It has two. FBGEMM's is the faster for a few rows, oneDNN's for many where the CPU has AMX (1.5 to 1.9 times for 32
    rows), so that there the weights are kept in both layouts.
    """

    def __init__(self, linear: nn.Linear):
        super().__init__()
        weight = linear.weight.detach().float()
        scales = (weight.abs().amax(1) / 127).clamp_min(1e-30)
        zeros = torch.zeros(len(weight), dtype=torch.long)
        packed = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
        bias = None if linear.bias is None else linear.bias.detach().float()
        self._n_in, self._n_out = linear.in_features, linear.out_features
        self._for_few = self._for_many = Packed(torch.ops.quantized.linear_prepack(packed, bias))
        if torch.cpu._is_amx_tile_supported() and "onednn" in torch.backends.quantized.supported_engines:
            usual = torch.backends.quantized.engine
            torch.backends.quantized.engine = "onednn"
            try:
                self._for_many = Packed(torch.ops.quantized.linear_prepack(packed, bias))
            finally:
                torch.backends.quantized.engine = usual

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        packed = self._for_many if x.numel() >= MANY * self._n_in else self._for_few
        y: Tensor
        if torch.compiler.is_compiling():
            y = _linear_of(x, packed.number, self._n_out)
        else:
            y = torch.ops.quantized.linear_dynamic(x, packed.weights)
        return y


def _backend() -> type[ArmInt8Linear] | type[TorchInt8Linear]:
    if platform.machine() in ("aarch64", "arm64"):
        _arm_kernel()
        return ArmInt8Linear
    if torch.backends.quantized.engine in ("x86", "fbgemm", "onednn"):
        return TorchInt8Linear
    raise NoInt8Error(f"no int8 kernel for {platform.machine()}: the float model runs everywhere")


@cache
def _arm_kernel() -> Any:
    """The compiled kernel: `pack` and `linear`."""
    compiler = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")
    if compiler is None:
        raise NoInt8Error("int8 on ARM compiles a kernel once and found no compiler: expected g++ or clang++, or CXX")
    identity = f"{torch.__version__} {compiler} {FLAGS}".encode() + SOURCE.read_bytes()
    library = cache_folder() / "kernels" / f"int8-{hashlib.sha256(identity).hexdigest()[:16]}.so"
    if not library.is_file():
        _compile(compiler, library)
    torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
    torch.library.register_fake("glassformer_int8::linear", _shape_of_linear)
    return torch.ops.glassformer_int8


def _shape_of_linear(x: Tensor, packed: Tensor, scales: Tensor, bias: Tensor | None, n: int) -> Tensor:
    """What torch.compile must know of the kernel."""
    return x.new_empty(*x.shape[:-1], n)


def _compile(compiler: str, library: Path) -> None:
    home = Path(torch.__file__).parent
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as work:
        built = Path(work) / library.name
        command = [compiler, *FLAGS, f"-I{home / 'include'}", f"-I{home / 'include/torch/csrc/api/include'}"]
        command += [str(SOURCE), "-o", str(built), f"-L{home / 'lib'}", "-ltorch_cpu", "-lc10"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            reason = result.stderr.strip().splitlines()[:1] or ["no reason given"]
            raise NoInt8Error(f"the int8 kernel could not be compiled: {reason[0]}")
        built.replace(library)  # whole or not there
