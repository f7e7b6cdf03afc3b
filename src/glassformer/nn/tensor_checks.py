"""Checks of tensor arguments. Each error message has the argument's `name`, its value and what was expected."""

from collections.abc import Sequence

import torch
from torch import Tensor

from glassformer.base.checks import check_divides as check_divides
from glassformer.base.checks import check_positive as check_positive
from glassformer.base.checks import check_probability as check_probability
from glassformer.base.checks import shortened as shortened
from glassformer.base.checks import shown as shown


def check_width(name: str, x: Tensor, width: int) -> None:
    """Raise ValueError or TypeError unless x is a floating-point tensor of shape (batch, length, width)."""
    if x.dim() != 3 or x.shape[-1] != width:
        raise ValueError(f"{name} has shape {tuple(x.shape)}: expected (batch, length, {width})")
    if not x.is_floating_point():
        raise TypeError(f"{name} has dtype {x.dtype}: expected a floating-point tensor")


def check_ids(name: str, ids: Tensor, vocab_size: int) -> None:
    """Raise TypeError or ValueError unless `ids` is an integer tensor (batch, length) of ids from 0 to vocab_size - 1.

    The values are checked on the CPU only: on a GPU, reading them would synchronize the device at every step.
    """
    if not isinstance(ids, Tensor):
        raise TypeError(f"{name} is a {type(ids).__name__}: expected a tensor of token ids, (batch, length)")
    if ids.dim() != 2:
        raise ValueError(f"{name} has shape {tuple(ids.shape)}: expected (batch, length)")
    if ids.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"{name} has dtype {ids.dtype}: expected torch.int64 or torch.int32 token ids")
    if ids.device.type != "cpu" or torch.compiler.is_compiling() or ids.numel() == 0:
        return
    low, high = (int(bound) for bound in ids.aminmax())
    _check_id_range(name, low, high, vocab_size)


def check_id_list(name: str, ids: Sequence[int], vocab_size: int) -> None:
    """Raise ValueError unless all `ids`, a list of Python numbers, are from 0 to vocab_size - 1.

    Call it before the ids are copied to a GPU. There, looking up a wrong id makes the GPU unusable for the rest of the
    process, and reading the ids back to check them would synchronize the device.
    """
    if len(ids):
        _check_id_range(name, min(ids), max(ids), vocab_size)


def _check_id_range(name: str, low: int, high: int, vocab_size: int) -> None:
    if low < 0 or high >= vocab_size:
        wrong = low if low < 0 else high
        raise ValueError(f"{name} holds the id {wrong}: expected ids from 0 to {vocab_size - 1}")


def check_length(name: str, length: int, limit: int | None) -> None:
    """Raise ValueError if `length` is above `limit`, the model's `max_len`. A `limit` of None allows any length."""
    if limit is not None and length > limit:
        raise ValueError(f"{name} reaches {length} tokens: expected at most max_len={limit}")


def check_shape(name: str, x: Tensor, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless x has exactly this shape."""
    if tuple(x.shape) != shape:
        raise ValueError(f"{name} has shape {tuple(x.shape)}: expected {shape}")


def check_broadcasts(name: str, x: Tensor, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless x has as many dimensions as `shape`, each of size 1 or of the size in `shape`."""
    fits = x.dim() == len(shape) and all(size in (1, full) for size, full in zip(x.shape, shape, strict=True))
    if not fits:
        raise ValueError(f"{name} has shape {tuple(x.shape)}: expected one that broadcasts to {shape}")
