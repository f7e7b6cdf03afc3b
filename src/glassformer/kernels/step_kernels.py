"""Kernels for the one step that is made for each token: a few queries a row over a cache that is mostly empty.

The kernels that torch chooses are made for many queries, and read all of the cache's room. These read what is filled.
For a GPU they are written in Triton, which comes with torch's builds for CUDA; for a CPU they are in C++, and used once
somebody has had them compiled (`kernels/cpp_library.py`). Where there are none, nothing changes but the time.
"""

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor

MAX_QUERIES = 16
"""Few. A product of a tensor core takes as many at least; where there are fewer, it computes with zeros."""
FEW_PROGRAMS = 256
"""Up to so many do not keep a GPU busy: each had better read much at once."""

_ON_GPU = (torch.bfloat16, torch.float16, torch.float32)

on_cpu: Any = None
"""The kernels for a CPU as operations of torch, once they are there."""

try:
    import triton
    import triton.language as tl

    HAS_KERNELS = hasattr(triton, "jit")
except ImportError:
    HAS_KERNELS = False

if HAS_KERNELS:

    @triton.jit  # type: ignore[untyped-decorator]
    def _attend(  # type: ignore[no-untyped-def]
        q, k, v, added, reach, out, q_b, q_h, q_t, k_b, k_h, k_s, v_b, v_h, v_s, a_b, a_h, a_t, a_s, o_b, o_h, o_t,
        r_b, heads, groups, scale: tl.constexpr, n_queries: tl.constexpr, width: tl.constexpr, block: tl.constexpr,
    ):  # fmt: skip
        """One program for a row and a head: softmax(q kᵀ · scale + added) v, over the keys in blocks."""
        row, head = (tl.program_id(0) // heads).to(tl.int64), (tl.program_id(0) % heads).to(tl.int64)
        queries, places, numbers = tl.arange(0, 16), tl.arange(0, block), tl.arange(0, width)
        is_query = queries < n_queries
        at = row * q_b + head * q_h + queries[:, None] * q_t + numbers[None, :]
        asked = tl.load(q + at, mask=is_query[:, None], other=0.0)
        k += row * k_b + head // groups * k_h
        v += row * v_b + head // groups * v_h
        added += row * a_b + head * a_h
        best = tl.full([16], float("-inf"), tl.float32)
        total = tl.zeros([16], tl.float32)
        mixed = tl.zeros([16, width], tl.float32)
        n_keys = tl.load(reach + row * r_b)
        for first in range(0, n_keys, block):
            keys = first + places
            is_key = keys < n_keys
            there = tl.load(k + keys[None, :] * k_s + numbers[:, None], mask=is_key[None, :], other=0.0)
            is_asked = is_query[:, None] & is_key[None, :]
            more = tl.load(added + queries[:, None] * a_t + keys[None, :] * a_s, mask=is_asked, other=float("-inf"))
            scores = tl.dot(asked, there, input_precision="ieee") * scale + more.to(tl.float32)
            new_best = tl.maximum(best, tl.max(scores, 1))
            anchor = tl.where(new_best == float("-inf"), 0.0, new_best)
            weights = tl.exp(scores - anchor[:, None])
            kept = tl.exp(best - anchor)
            brought = tl.load(v + keys[:, None] * v_s + numbers[None, :], mask=is_key[:, None], other=0.0)
            mixed = mixed * kept[:, None] + tl.dot(weights.to(brought.dtype), brought, input_precision="ieee")
            total = total * kept + tl.sum(weights, 1)
            best = new_best
        result = mixed / tl.where(total == 0.0, 1.0, total)[:, None]  # zeros, where nothing may be attended
        at = row * o_b + head * o_h + queries[:, None] * o_t + numbers[None, :]
        tl.store(out + at, result.to(out.dtype.element_ty), mask=is_query[:, None])

    @triton.jit  # type: ignore[untyped-decorator]
    def _put(  # type: ignore[no-untyped-def]
        k, v, keys, values, place, k_b, k_h, v_b, v_h, to_b, to_h, to_s, heads, width: tl.constexpr
    ):
        """One program for a row and a head: its new key and value into the cache."""
        row, head = (tl.program_id(0) // heads).to(tl.int64), (tl.program_id(0) % heads).to(tl.int64)
        numbers = tl.arange(0, width)
        to = row * to_b + head * to_h + tl.load(place) * to_s + numbers
        tl.store(keys + to, tl.load(k + row * k_b + head * k_h + numbers))
        tl.store(values + to, tl.load(v + row * v_b + head * v_h + numbers))

    @triton.jit  # type: ignore[untyped-decorator]
    def _move(  # type: ignore[no-untyped-def]
        keys, values, rows, place, row_b, row_h, heads,
        n_rows: tl.constexpr, room: tl.constexpr, width: tl.constexpr, block: tl.constexpr,
    ):  # fmt: skip
        """One program for a group of rows, a head and some of its numbers: all are read before any is written."""
        group, head = (tl.program_id(0) // heads).to(tl.int64), (tl.program_id(0) % heads).to(tl.int64)
        filled = tl.load(place) * width
        if tl.program_id(1) * block < filled:
            own = tl.arange(0, room)
            is_row = own < n_rows
            source = tl.load(rows + group * n_rows + own, mask=is_row, other=0)
            numbers = tl.program_id(1) * block + tl.arange(0, block)
            is_there = is_row[:, None] & (numbers < filled)[None, :]
            source = source[:, None] * row_b + head * row_h + numbers[None, :]
            target = (group * n_rows + own)[:, None] * row_b + head * row_h + numbers[None, :]
            k = tl.load(keys + source, mask=is_there)
            v = tl.load(values + source, mask=is_there)
            tl.debug_barrier()
            tl.store(keys + target, k, mask=is_there)
            tl.store(values + target, v, mask=is_there)


def find_reach(allowed: Tensor) -> Tensor:
    """Behind the last key that any query of a row may attend to: (B or 1, H or 1, T or 1, S) -> (B or 1,)."""
    places = torch.arange(1, allowed.shape[3] + 1, device=allowed.device)
    is_seen = allowed[:, 0, 0] if allowed.shape[1] == allowed.shape[2] == 1 else allowed.any(2).any(1)
    return (is_seen * places).amax(1)


def are_there(like: Tensor) -> bool:
    """Whether there are kernels for a model that computes with numbers like these, where they are."""
    # Others do not have them. (What compiles, torch 2.11 believes to be exporting.)
    if torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling():
        return False
    return are_on(like.device) and like.dtype in (_ON_GPU if like.is_cuda else (torch.float32,))


def are_on(device: torch.device) -> bool:
    """Whether there are kernels for what is on this device."""
    if device.type == "cuda":  # what is compiled has run before
        return HAS_KERNELS and (torch.compiler.is_compiling() or _capability(device) >= (8, 0))
    return device.type == "cpu" and on_cpu is not None


@cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


def _fits(*tensors: Tensor) -> bool:
    """Whether the kernels can read these: heads of a usual width, their numbers side by side; no gradients wanted."""
    first = tensors[0]
    return (
        are_on(first.device)
        and first.dtype in (_ON_GPU if first.is_cuda else (torch.float16, torch.float32))
        and first.shape[-1] in (16, 32, 64, 128)
        and all(x.shape[-1] == first.shape[-1] and x.stride(-1) == 1 for x in tensors)
        and all(x.dtype == first.dtype and x.device == first.device for x in tensors)
        and not (torch.is_grad_enabled() and any(x.requires_grad for x in tensors))
    )


def can_read(keys: Tensor, like: Tensor) -> bool:
    """Whether `attend_few` takes such keys of a cache, for queries of numbers like these."""
    return are_there(like) and _fits(keys) and (not keys.is_cuda or keys.dtype == like.dtype)


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Where kernels are launched: Triton launches on the current device, unless a compiler takes care of that."""
    return nullcontext() if torch.compiler.is_compiling() or device.type != "cuda" else torch.cuda.device(device)


def can_attend(q: Tensor, k: Tensor, v: Tensor, added: Tensor) -> bool:
    """Whether `attend_few` takes these."""
    is_usual = 0 < q.shape[2] <= MAX_QUERIES and q.shape[0] > 0 and are_there(q) and added.dtype == q.dtype
    # On a CPU keys and values may be kept in half precision.
    return is_usual and v.shape[-1] == q.shape[-1] and (_fits(q, k, v) if q.is_cuda else _fits(q) and _fits(k, v))


def attend_few(q: Tensor, k: Tensor, v: Tensor, added: Tensor, reach: Tensor, scale: float) -> Tensor:
    """A few queries (B, H, T, D) over keys and values (B, G, S, D): of each row the first `reach` (B or 1,) of them.

    `added` broadcasts to (B, H, T, S).
    """
    if on_cpu is not None and not q.is_cuda:
        mixed: Tensor = on_cpu.attend(q, k, v, added, reach, scale)
        return mixed
    batch, heads, n_queries, width = q.shape
    added = added.expand(batch, heads, n_queries, k.shape[2])
    out = torch.empty(batch, n_queries, heads, width, dtype=q.dtype, device=q.device).transpose(1, 2)
    n_keys, row_bytes = k.shape[2], width * q.element_size()
    # Measured on an H200, for heads of 64 in bfloat16: 32 or 288 keys, 12 to 4,096 programs.
    if batch * heads <= FEW_PROGRAMS:
        block, warps = min(triton.next_power_of_2(max(n_keys, 16)), (1 << 15) // row_bytes), 4
    else:
        block, warps = 16 if n_keys <= 64 else 32, max(1, row_bytes // 128)
    launch: Any = _attend[(batch * heads,)]
    with on_device(q.device):
        launch(
            q, k, v, added, reach, out,
            *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *added.stride(), *out.stride()[:3],
            reach.expand(batch).stride(0), heads, heads // k.shape[1], scale, n_queries, width, block,
            num_warps=warps, num_stages=1,
        )  # fmt: skip
    return out


def can_put(k: Tensor, v: Tensor, keys: Tensor) -> bool:
    """Whether `put_one` takes these."""
    return len(k) > 0 and k.is_cuda and _fits(k, v, keys)  # torch's own way is as good on a CPU


def put_one(k: Tensor, v: Tensor, keys: Tensor, values: Tensor, place: Tensor) -> None:
    """A new key and value of each row (B, G, 1, D) into the cache's (B, G, S, D), at the place (1,)."""
    batch, heads, _, width = k.shape
    launch: Any = _put[(batch * heads,)]
    with on_device(k.device):
        launch(
            k, v, keys, values, place,
            *k.stride()[:2], *v.stride()[:2], *keys.stride()[:3], heads, width, num_warps=1,
        )  # fmt: skip


def can_move(keys: Tensor, *, anywhere: bool = False) -> bool:
    """Whether `move_rows` takes these. To move rows `anywhere`, in one group, a GPU has too little room."""
    return len(keys) > 0 and _fits(keys) and keys.is_contiguous() and not (anywhere and keys.is_cuda)


def move_rows(keys: Tensor, values: Tensor, rows: Tensor, place: Tensor, width: int) -> None:
    """Row i becomes what row `rows[i]` was, of a cache's (B, G, S, D), up to the place (1,).

    Rows move within groups of `width` neighbours only, so that nothing has to be kept elsewhere meanwhile; `rows` may
    be of the first groups alone.
    """
    if on_cpu is not None and not keys.is_cuda:
        on_cpu.move(keys, values, rows, place, width)
        return
    _, heads, room, numbers = keys.shape
    block = 1024
    launch: Any = _move[(len(rows) // width * heads, triton.cdiv(room * numbers, block))]
    with on_device(keys.device):
        launch(
            keys, values, rows, place, *keys.stride()[:2], heads,
            width, triton.next_power_of_2(width), numbers, block, num_warps=4,
        )  # fmt: skip
