"""Linear layers of training on a CPU with AMX, as functions of tensors: forward and backward (`training_products.h`).

Tensors are float32. Products round their inputs to bfloat16 and sum in float32. With `fp32_precision = "bf16"` torch
does the same in up to twice the time. Layers with the same input are one call, so that the input is rounded once.
"""

import ctypes
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from glassformer.kernels.cpp_library import KernelBuildError
from glassformer.kernels.cpu_training import training_functions

MAX_LAYERS = 4
"""The most layers of one call."""
_INTEGER, _POINTER = ctypes.c_int64, ctypes.c_void_p


class _LinearPart(ctypes.Structure):
    _fields_ = (
        *((name, _POINTER) for name in ("weight", "bias", "out", "of_out", "of_weight", "of_bias")),
        ("n_out", _INTEGER),
    )


class _LinearCall(ctypes.Structure):
    _fields_ = (
        ("x", _POINTER),
        ("of_x", _POINTER),
        *((name, _INTEGER) for name in ("rows", "n_in", "n_parts", "adds", "threads")),
        ("parts", _LinearPart * MAX_LAYERS),
    )


@cache
def has_products() -> bool:
    """Whether this CPU has AMX and the kernels for it are built here."""
    if not torch.cpu._is_amx_tile_supported() or not torch.cpu._init_amx():
        return False
    try:
        return hasattr(training_functions(), "linear_forward")
    except KernelBuildError:
        return False


def linear_forward(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> list[Tensor]:
    """Return x Wᵀ + b for rows x (N, C_in) and each of the weights (C_out, C_in) and biases (C_out)."""
    x, weights = _checked(x, weights, biases)
    outs = [x.new_empty(len(x), len(weight)) for weight in weights]
    call = _call(x, weights)
    for part, bias, out in zip(call.parts, biases, outs, strict=False):
        part.bias, part.out = _pointer(bias), out.data_ptr()
    if len(x):
        _check_memory(training_functions().linear_forward(ctypes.byref(call)))
    return outs


def linear_backward(
    of_outs: Sequence[Tensor],
    x: Tensor,
    weights: Sequence[Tensor],
    has_biases: Sequence[bool],
    *,
    needs_x: bool = True,
) -> tuple[Tensor | None, list[Tensor], list[Tensor | None]]:
    """Return the gradients with respect to x, the weights and the biases, given those of the results."""
    of_weights = [torch.empty_like(weight, memory_format=torch.contiguous_format) for weight in weights]
    of_biases = [
        weight.new_empty(len(weight)) if has else None for weight, has in zip(weights, has_biases, strict=True)
    ]
    of_x = torch.empty_like(x, memory_format=torch.contiguous_format) if needs_x else None
    write_linear_gradients(of_outs, x, weights, of_weights, of_biases, of_x)
    return of_x, of_weights, of_biases


def write_linear_gradients(
    of_outs: Sequence[Tensor],
    x: Tensor,
    weights: Sequence[Tensor],
    of_weights: Sequence[Tensor],
    of_biases: Sequence[Tensor | None],
    of_x: Tensor | None,
    *,
    adds: bool = False,
) -> None:
    """Write the gradients of `linear_backward` to tensors; with `adds`, add those of the parameters to them."""
    x, weights = _checked(x, weights, of_biases)
    of_outs = [of_out.contiguous() for of_out in of_outs]
    shapes = [(len(x), len(weight)) for weight in weights]
    if [tuple(of_out.shape) for of_out in of_outs] != shapes or any(not _is_plain(one) for one in of_outs):
        raise ValueError(f"gradients {[tuple(one.shape) for one in of_outs]}: expected float32, of shapes {shapes}")
    places = [*zip(of_weights, weights, strict=True), *([] if of_x is None else [(of_x, x)])]
    for to, like in places:
        if to.shape != like.shape or not _is_plain(to) or not to.is_contiguous():
            found = f"{to.dtype} tensor of shape {tuple(to.shape)} and strides {to.stride()}"
            raise ValueError(f"gradient: {found}: expected a contiguous one of float32, of shape {tuple(like.shape)}")
    if not len(x):
        for to in (*of_weights, *(one for one in of_biases if one is not None)):
            to.zero_() if not adds else None
        return
    call = _call(x, weights)
    call.adds, call.of_x = adds, _pointer(of_x)
    for part, of_out, of_weight, of_bias in zip(call.parts, of_outs, of_weights, of_biases, strict=False):
        part.of_out, part.of_weight, part.of_bias = of_out.data_ptr(), of_weight.data_ptr(), _pointer(of_bias)
    _check_memory(training_functions().linear_backward(ctypes.byref(call)))


def _check_memory(has_memory: int) -> None:
    if not has_memory:
        raise MemoryError("the kernels of linear layers got no memory for their tiles")


def _call(x: Tensor, weights: Sequence[Tensor]) -> _LinearCall:
    rows, n_in = x.shape
    call = _LinearCall(x.data_ptr(), None, rows, n_in, len(weights), 0, torch.get_num_threads())
    for part, weight in zip(call.parts, weights, strict=False):
        part.weight, part.n_out = weight.data_ptr(), len(weight)
    return call


def _checked(x: Tensor, weights: Sequence[Tensor], vectors: Sequence[Tensor | None]) -> tuple[Tensor, list[Tensor]]:
    """Return x and the weights, contiguous. Raises ValueError if the kernels cannot read them or the vectors."""
    shapes = f"{tuple(x.shape)}, weights {[tuple(weight.shape) for weight in weights]}"
    if not 1 <= len(weights) <= MAX_LAYERS or len(vectors) != len(weights) or x.dim() != 2:
        raise ValueError(f"{shapes}: expected rows and 1 to {MAX_LAYERS} weights, and a bias or None for each")
    for weight, vector in zip(weights, vectors, strict=True):
        is_fitting = vector is None or (vector.shape == weight.shape[:1] and vector.is_contiguous())
        if weight.dim() != 2 or weight.shape[1] != x.shape[1] or not weight.numel() or not is_fitting:
            raise ValueError(f"{shapes}: expected weights of {x.shape[1]} columns, and a contiguous bias per row")
    for one in (x, *weights, *(vector for vector in vectors if vector is not None)):
        if not _is_plain(one):
            raise ValueError(f"{one.dtype} tensor on {one.device}: expected float32 on a CPU")
    return x.contiguous(), [weight.contiguous() for weight in weights]


def _is_plain(x: Tensor) -> bool:
    return x.dtype == torch.float32 and x.device.type == "cpu"


def _pointer(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()
