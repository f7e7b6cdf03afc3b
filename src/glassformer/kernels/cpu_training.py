"""The C++ kernels of training on a CPU (`cpp/training.cpp`), as functions of tensors: each forward and backward.

torch computes attention of short sequences, norms of heads, rotations and gates with several passes over memory, and
copies between their layouts, and draws the random numbers of dropout one after the other on one core. The kernels here
read and write each row while it is in the caches of one core. Numbers are float32 on a CPU.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from glassformer.kernels.cpp_library import KernelBuildError, load_training_library

MAX_LENGTH = 128
"""The most queries, and the most keys, of `attend_rows`. torch's kernel for long sequences is faster from there on."""
NORM_CODES = {None: 0, "layer": 1, "rms": 2}
"""The numbers by which the C++ code knows norms."""
NormName = Literal["layer", "rms"]

_INTEGER, _NUMBER, _POINTER = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p


class _ProjectedRows(ctypes.Structure):
    _fields_ = (
        ("data", _POINTER),
        ("batch_step", _INTEGER),
        ("row_step", _INTEGER),
        ("weight", _POINTER),
        ("bias", _POINTER),
    )


class _AttentionCall(ctypes.Structure):
    _fields_ = (
        *((name, _INTEGER) for name in ("batch", "n_queries", "n_keys", "n_heads", "n_groups", "head_dim")),
        *((name, _ProjectedRows) for name in ("q", "k", "v")),
        ("norm", _INTEGER),
        ("eps", _NUMBER),
        ("cos", _POINTER),
        ("sin", _POINTER),
        ("angle_step", _INTEGER),
        ("n_pairs", _INTEGER),
        ("real", _POINTER),
        ("causal", _INTEGER),
        ("scale", _NUMBER),
        *((name, _POINTER) for name in ("out", "of_out", "of_q", "of_k", "of_v", "of_norms")),
        ("threads", _INTEGER),
    )


_PARAMETER_TYPES = {
    "add_dropout": (_POINTER, _POINTER, _INTEGER, _INTEGER, _INTEGER, _NUMBER, _POINTER, _INTEGER),
    "attention_forward": (_POINTER,),
    "attention_backward": (_POINTER,),
    "cross_entropy": (_POINTER, _POINTER, _INTEGER, _INTEGER, _NUMBER, _POINTER, _INTEGER),
    "dropout": (_POINTER, _INTEGER, _INTEGER, _INTEGER, _NUMBER, _POINTER, _INTEGER),
    "norm_backward": (_POINTER,),
    "norm_forward": (_POINTER,),
    "relu_dropout_backward": (_POINTER, _POINTER, _INTEGER, _NUMBER, _INTEGER),
    "relu_dropout_forward": (_POINTER, _INTEGER, _INTEGER, _INTEGER, _NUMBER, _INTEGER),
    "silu_gate_forward": (_POINTER, _POINTER, _INTEGER, _POINTER, _INTEGER),
    "silu_gate_backward": (_POINTER, _POINTER, _POINTER, _INTEGER, _POINTER, _POINTER, _INTEGER),
}
"""The C functions of `cpp/training.cpp`, by name, with the types of their parameters."""
_AMX_FUNCTIONS = "linear_forward", "linear_backward"
"""Functions that only a library for AMX has. They return 0 if they get no memory."""


@cache
def _library() -> ctypes.CDLL | KernelBuildError:
    """Return the C functions, or the cached build error, so that a failed build is not retried."""
    try:
        library = load_training_library()
    except KernelBuildError as error:
        return error
    for name in _AMX_FUNCTIONS:
        if hasattr(library, name):
            function = getattr(library, name)
            function.argtypes, function.restype = (_POINTER,), ctypes.c_int32
    for name, types in _PARAMETER_TYPES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = types, None
    library.sum_of_squares.argtypes = _POINTER, _INTEGER, _INTEGER
    library.sum_of_squares.restype = _NUMBER
    return library


def build_training_kernels() -> None:
    """Compile and load the kernels, which takes some seconds the first time. Raises KernelBuildError if it fails."""
    training_functions()


def training_functions() -> Any:
    """Return the C functions of `cpp/training.cpp`, compiled if need be. Raises KernelBuildError if that fails."""
    found = _library()
    if isinstance(found, KernelBuildError):
        raise found
    return found


@dataclass(frozen=True, kw_only=True)
class AttentionRules:
    """How the projected rows of queries, keys and values become mixed rows."""

    n_heads: int
    n_groups: int
    """Number of key-value heads, each read by n_heads / n_groups query heads."""
    scale: float
    causal: bool = False
    """The last query stands at the last key. A query attends to keys at its own and earlier positions only."""
    real: Tensor | None = None
    """(B, S), False where a key is padding."""
    norm: NormName | None = None
    """The norm of each head's queries and keys."""
    eps: float = 0.0
    cos: Tensor | None = None
    """(B or 1, T, R/2): cosines of the angles by which pairs of queries and keys are rotated, and `sin` their sines."""
    sin: Tensor | None = None


class HeadNorms(NamedTuple):
    """Weights and biases (D) of the norms of queries and keys; None where there is none."""

    q_weight: Tensor | None = None
    q_bias: Tensor | None = None
    k_weight: Tensor | None = None
    k_bias: Tensor | None = None


def attend_rows(q: Tensor, k: Tensor, v: Tensor, rules: AttentionRules, norms: HeadNorms) -> Tensor:
    """Return the attention (B, T, H·D) of projected queries (B, T, H·D) to keys and values (B, S, G·D)."""
    q, k, v = _contiguous_rows(q), _contiguous_rows(k), _contiguous_rows(v)
    out = q.new_empty(q.shape)
    call = _attention_call(q, k, v, rules, norms)
    call.out = out.data_ptr()
    training_functions().attention_forward(ctypes.byref(call))
    return out


def attend_rows_gradient(
    of_out: Tensor, q: Tensor, k: Tensor, v: Tensor, rules: AttentionRules, norms: HeadNorms
) -> tuple[Tensor, Tensor, Tensor, HeadNorms]:
    """Return the gradients of `attend_rows` by q, k, v and `norms`, given that of its result."""
    q, k, v, of_out = _contiguous_rows(q), _contiguous_rows(k), _contiguous_rows(v), of_out.contiguous()
    of_q, of_k, of_v = q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)
    call = _attention_call(q, k, v, rules, norms)
    call.of_out = of_out.data_ptr()
    call.of_q, call.of_k, call.of_v = of_q.data_ptr(), of_k.data_ptr(), of_v.data_ptr()
    sums = None
    if rules.norm is not None:
        sums = q.new_empty(len(q) * rules.n_groups, 4, q.shape[-1] // rules.n_heads)
        call.of_norms = sums.data_ptr()
    training_functions().attention_backward(ctypes.byref(call))
    if sums is None:
        return of_q, of_k, of_v, HeadNorms()
    found = sums.sum(0)  # (4, D)
    return of_q, of_k, of_v, HeadNorms(*(None if x is None else some for x, some in zip(norms, found, strict=True)))


def silu_gate(gate: Tensor, up: Tensor) -> Tensor:
    """Return silu(gate) * up, for tensors of one shape."""
    check_same(gate, up)
    gate, up = gate.contiguous(), up.contiguous()
    hidden = torch.empty_like(gate)
    inputs = gate.data_ptr(), up.data_ptr()
    training_functions().silu_gate_forward(*inputs, gate.numel(), hidden.data_ptr(), torch.get_num_threads())
    return hidden


def silu_gate_gradient(of_hidden: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of `silu_gate` by gate and up, given that of its result."""
    check_same(gate, up, of_hidden)
    gate, up, of_hidden = gate.contiguous(), up.contiguous(), of_hidden.contiguous()
    of_gate, of_up = torch.empty_like(gate), torch.empty_like(up)
    inputs = of_hidden.data_ptr(), gate.data_ptr(), up.data_ptr()
    outputs = of_gate.data_ptr(), of_up.data_ptr()
    training_functions().silu_gate_backward(*inputs, gate.numel(), *outputs, torch.get_num_threads())
    return of_gate, of_up


def drop_numbers(x: Tensor, p: float, seed: int) -> Tensor:
    """Return x with each element set to 0 with probability p < 1, and the rest multiplied by 1 / (1 - p).

    Which elements are dropped depends on the shape and on `seed`, a signed 64-bit number. So the gradient of the result
    by x, times the gradient of the result, is `drop_numbers` of that gradient.
    """
    limit, scale = drop_rule(p)
    check_same(x)
    x = x.contiguous()
    out = torch.empty_like(x)
    training_functions().dropout(x.data_ptr(), x.numel(), seed, limit, scale, out.data_ptr(), torch.get_num_threads())
    return out


def add_dropped(x: Tensor, branch: Tensor, p: float, seed: int) -> Tensor:
    """Return x + `drop_numbers` of a branch of the same shape, in one pass."""
    limit, scale = drop_rule(p)
    check_same(x, branch)
    x, branch = x.contiguous(), branch.contiguous()
    out = torch.empty_like(x)
    inputs, output = (x.data_ptr(), branch.data_ptr()), (out.data_ptr(), torch.get_num_threads())
    training_functions().add_dropout(*inputs, x.numel(), seed, limit, scale, *output)
    return out


def relu_and_drop(x: Tensor, p: float, seed: int) -> None:
    """Replace contiguous x by `drop_numbers` of relu(x)."""
    limit, scale = drop_rule(p)
    _check_contiguous(x)
    training_functions().relu_dropout_forward(x.data_ptr(), x.numel(), seed, limit, scale, torch.get_num_threads())


def relu_and_drop_gradient(gradient: Tensor, result: Tensor, p: float) -> None:
    """Replace the contiguous gradient of the result of `relu_and_drop` by that of its input."""
    check_same(gradient, result)
    _check_contiguous(gradient, result)
    pointers, scale = (gradient.data_ptr(), result.data_ptr()), drop_rule(p)[1]
    training_functions().relu_dropout_backward(*pointers, result.numel(), scale, torch.get_num_threads())


def norm_of(tensors: Sequence[Tensor]) -> Tensor:
    """Return the norm of the numbers of all tensors, which are contiguous float32 on a CPU."""
    _check_contiguous(*tensors)
    add, threads = training_functions().sum_of_squares, torch.get_num_threads()
    return torch.tensor(sum(add(x.data_ptr(), x.numel(), threads) for x in tensors) ** 0.5)


def replace_by_gradient(logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """Replace logits (N, V) by the gradient of their summed label-smoothed cross-entropy, and return that loss.

    `targets` (N) are ids below V; none is ignored.
    """
    if logits.dtype != torch.float32 or not logits.is_contiguous() or targets.dtype != torch.int64:
        raise ValueError(f"{logits.dtype} logits, {targets.dtype} targets: expected contiguous float32, and int64")
    n_rows, n_classes = logits.shape
    if targets.shape != (n_rows,) or (n_rows and not 0 <= int(targets.min()) <= int(targets.max()) < n_classes):
        raise IndexError(f"targets {tuple(targets.shape)}: expected {n_rows} ids from 0 to {n_classes - 1}")
    targets, losses = targets.contiguous(), logits.new_empty(n_rows)
    pointers, settings = (logits.data_ptr(), targets.data_ptr()), (n_rows, n_classes, smoothing)
    training_functions().cross_entropy(*pointers, *settings, losses.data_ptr(), torch.get_num_threads())
    return losses.sum()


def drop_rule(p: float) -> tuple[int, float]:
    """Return the 32-bit number below which an element is dropped, and the factor of kept ones, for probability p."""
    if not 0 <= p < 1:
        raise ValueError(f"p={p}: expected a probability, at least 0 and below 1")
    limit = min(round(p * 2**32), 2**32 - 1)
    return limit, 2**32 / (2**32 - limit)


def _check_contiguous(*tensors: Tensor) -> None:
    """Raise ValueError unless all tensors are contiguous float32 on a CPU."""
    for x in tensors:
        if x.dtype != torch.float32 or x.device.type != "cpu" or not x.is_contiguous():
            found = f"{x.dtype} tensor on {x.device} with strides {x.stride()}"
            raise ValueError(f"{found}: expected contiguous float32 on a CPU")


def check_same(*tensors: Tensor) -> None:
    """Raise ValueError unless all tensors are float32 on a CPU and have one shape."""
    kinds = {(x.shape, x.dtype, x.device.type) for x in tensors}
    if kinds != {(tensors[0].shape, torch.float32, "cpu")}:
        raise ValueError(f"{sorted(map(str, kinds))}: expected float32 tensors of one shape on a CPU")


def _contiguous_rows(x: Tensor) -> Tensor:
    """Return x (B, T, C), copied unless each of its rows is contiguous."""
    return x if x.stride(2) == 1 else x.contiguous()


def _pointer(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


def _attention_call(q: Tensor, k: Tensor, v: Tensor, rules: AttentionRules, norms: HeadNorms) -> _AttentionCall:
    batch, n_queries, width = q.shape
    head_dim, n_keys = width // rules.n_heads, k.shape[1]
    expected = batch, n_keys, head_dim * rules.n_groups
    if tuple(k.shape) != expected or tuple(v.shape) != expected or not n_keys:
        raise ValueError(f"keys {tuple(k.shape)} and values {tuple(v.shape)}: expected {expected}, and some keys")
    if width % rules.n_heads or rules.n_heads % rules.n_groups:
        raise ValueError(f"{rules.n_heads} heads, {rules.n_groups} key-value heads, width {width}: expected multiples")
    if (rules.cos is None) != (rules.sin is None):
        raise ValueError("expected cosines and sines together")
    params = tuple(x for x in norms if x is not None)
    for x in (q, k, v, *params, *(x for x in (rules.cos, rules.sin) if x is not None)):
        if x.dtype != torch.float32 or x.device.type != "cpu":
            raise ValueError(f"{x.dtype} tensor on {x.device}: expected float32 on a CPU")
    if any(tuple(x.shape) != (head_dim,) or not x.is_contiguous() for x in params):
        shapes = [tuple(x.shape) for x in params]
        raise ValueError(f"parameters of norms {shapes}: expected contiguous ones of shape ({head_dim},)")
    call = _AttentionCall(
        batch=batch, n_queries=n_queries, n_keys=n_keys, n_heads=rules.n_heads, n_groups=rules.n_groups
    )
    call.head_dim, call.norm, call.eps = head_dim, NORM_CODES[rules.norm], rules.eps
    call.q = _ProjectedRows(q.data_ptr(), *q.stride()[:2], _pointer(norms.q_weight), _pointer(norms.q_bias))
    call.k = _ProjectedRows(k.data_ptr(), *k.stride()[:2], _pointer(norms.k_weight), _pointer(norms.k_bias))
    call.v = _ProjectedRows(v.data_ptr(), *v.stride()[:2], None, None)
    if rules.cos is not None and rules.sin is not None:
        _check_angles(rules.cos, rules.sin, batch, n_queries, n_keys, head_dim)
        call.cos, call.sin, call.n_pairs = rules.cos.data_ptr(), rules.sin.data_ptr(), rules.cos.shape[2]
        call.angle_step = 0 if len(rules.cos) == 1 else rules.cos.stride(0)
    if rules.real is not None:
        if tuple(rules.real.shape) != (batch, n_keys) or rules.real.dtype != torch.bool:
            raise ValueError(f"real {tuple(rules.real.shape)}: expected booleans {(batch, n_keys)}")
        if not rules.real.is_contiguous() or rules.real.device.type != "cpu":
            raise ValueError(f"real with strides {rules.real.stride()}: expected a contiguous tensor on the CPU")
        call.real = rules.real.data_ptr()
    call.causal, call.scale, call.threads = rules.causal, rules.scale, torch.get_num_threads()
    return call


def _check_angles(cos: Tensor, sin: Tensor, batch: int, n_queries: int, n_keys: int, head_dim: int) -> None:
    """Raise ValueError unless the kernels can read these cosines and sines."""
    has_shape = cos.dim() == 3 and len(cos) in (1, batch) and cos.shape[1] == n_queries == n_keys
    if not has_shape or cos.shape != sin.shape or 2 * cos.shape[2] > head_dim:
        shapes = f"cosines {tuple(cos.shape)} and sines {tuple(sin.shape)}"
        raise ValueError(
            f"{shapes} for {n_queries} queries: expected (1 or {batch}, {n_queries}, at most {head_dim // 2})"
        )
    if not cos.is_contiguous() or not sin.is_contiguous():
        raise ValueError(f"cosines and sines with strides {cos.stride()} and {sin.stride()}: expected contiguous ones")
