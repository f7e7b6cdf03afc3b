"""Attention of one decoding step on a GPU, in Triton.

torch's kernels are tuned for many queries and read the cache to its full capacity. These read the filled part only. A
short cache is read by one program per head. A long one is divided: several programs read a part of the keys each, and a
second kernel combines their results.

The functions with `@triton.jit` run on the GPU, as many parallel programs. Their arguments `q_b`, `q_h`, `q_t` and the
like are strides: of `q` by batch row, head and query.

With `writes` the kernels also write the new key and value of each batch row into the cache, at `position`. Every
program that reads them has written them before, so that none waits for another.
"""

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

FEW_PROGRAMS = 256
"""Up to this many Triton programs leave a GPU partly idle, so each one reads larger blocks of keys."""
SPLIT_KEYS = 1024
"""From this many cached keys on, several programs share the keys of one row and key-value head."""
KEYS_PER_SPLIT = 128
"""The fewest keys of one of these programs."""
SPLIT_BLOCK, SPLIT_BYTES = 128, 1 << 14
"""The most keys that one of these programs reads at once, and their most bytes, for shared memory of 100 kB."""
MAX_SPLIT_QUERIES = 64
"""The most queries that one of these programs computes: those of all heads that share a key-value head."""
SPLIT_PROGRAMS, MAX_SPLITS = 512, 128
"""Programs that keep a large GPU busy, and the most of them that share the keys of one row and head."""

try:
    import triton
    import triton.language as tl

    HAS_TRITON = hasattr(triton, "jit")
except ImportError:
    HAS_TRITON = False

if HAS_TRITON:

    @triton.jit  # type: ignore[untyped-decorator]
    def _attend_filled(  # type: ignore[no-untyped-def]
        q, k, v, added, key_end, out, q_b, q_h, q_t, k_b, k_h, k_s, v_b, v_h, v_s, a_b, a_h, a_t, a_s, o_b, o_h, o_t,
        r_b, new_k, new_v, position, nk_b, nk_h, nv_b, nv_h, p_b, heads, groups,
        scale: tl.constexpr, n_queries: tl.constexpr, width: tl.constexpr, block: tl.constexpr, writes: tl.constexpr,
        waits: tl.constexpr,
    ):  # fmt: skip
        """Compute softmax(q kᵀ · scale + added) v over the first `key_end` keys, for `attend_filled`.

        One program per batch row and head computes all queries, with an online softmax over blocks of keys. `key_end`
        points to the number of filled keys of each row, at stride `r_b`. Other strides are named by tensor and axis:
        `k_h` is that of the keys from head to head. `groups` query heads share one key head.
        """
        if waits:
            tl.extra.cuda.gdc_launch_dependents()
            tl.extra.cuda.gdc_wait()
        row, head = (tl.program_id(0) // heads).to(tl.int64), (tl.program_id(0) % heads).to(tl.int64)
        queries, places, numbers = tl.arange(0, 16), tl.arange(0, block), tl.arange(0, width)
        is_query = queries < n_queries
        at = row * q_b + head * q_h + queries[:, None] * q_t + numbers[None, :]
        query = tl.load(q + at, mask=is_query[:, None], other=0.0)
        k += row * k_b + head // groups * k_h
        v += row * v_b + head // groups * v_h
        added += row * a_b + head * a_h
        if writes:
            place = tl.load(position + row * p_b)
            tl.store(k + place * k_s + numbers, tl.load(new_k + row * nk_b + head // groups * nk_h + numbers))
            tl.store(v + place * v_s + numbers, tl.load(new_v + row * nv_b + head // groups * nv_h + numbers))
            tl.debug_barrier()  # other threads of this program read them
        best = tl.full([16], float("-inf"), tl.float32)
        total = tl.zeros([16], tl.float32)
        mixed = tl.zeros([16, width], tl.float32)
        n_keys = tl.load(key_end + row * r_b)
        for first in range(0, n_keys, block):
            keys = first + places
            is_key = keys < n_keys
            there = tl.load(k + keys[None, :] * k_s + numbers[:, None], mask=is_key[None, :], other=0.0)
            is_pair = is_query[:, None] & is_key[None, :]
            more = tl.load(added + queries[:, None] * a_t + keys[None, :] * a_s, mask=is_pair, other=float("-inf"))
            scores = tl.dot(query, there, input_precision="ieee") * scale + more.to(tl.float32)
            new_best = tl.maximum(best, tl.max(scores, 1))
            anchor = tl.where(new_best == float("-inf"), 0.0, new_best)
            weights = tl.exp(scores - anchor[:, None])
            kept = tl.exp(best - anchor)
            brought = tl.load(v + keys[:, None] * v_s + numbers[None, :], mask=is_key[:, None], other=0.0)
            mixed = mixed * kept[:, None] + tl.dot(weights.to(brought.dtype), brought, input_precision="ieee")
            total = total * kept + tl.sum(weights, 1)
            best = new_best
        result = mixed / tl.where(total == 0.0, 1.0, total)[:, None]  # zeros where every key is masked
        at = row * o_b + head * o_h + queries[:, None] * o_t + numbers[None, :]
        tl.store(out + at, result.to(out.dtype.element_ty), mask=is_query[:, None])

    @triton.jit  # type: ignore[untyped-decorator]
    def _attend_one(  # type: ignore[no-untyped-def]
        q, k, v, added, key_end, out, q_b, q_h, k_b, k_h, k_s, v_b, v_h, v_s, a_b, a_h, a_s, o_b, o_h,
        r_b, new_k, new_v, position, nk_b, nk_h, nv_b, nv_h, p_b, heads, groups,
        scale: tl.constexpr, width: tl.constexpr, block: tl.constexpr, writes: tl.constexpr, waits: tl.constexpr,
    ):  # fmt: skip
        """Compute what `_attend_filled` does for a single query, without tensor cores, which multiply at least 16.

        Each of the `block` keys that are read at once has a separate online softmax, over every `block`-th key. So
        the threads that read different keys exchange nothing until the end, where the results are joined.
        """
        if waits:
            tl.extra.cuda.gdc_launch_dependents()
            tl.extra.cuda.gdc_wait()
        row, head = (tl.program_id(0) // heads).to(tl.int64), (tl.program_id(0) % heads).to(tl.int64)
        places, numbers = tl.arange(0, block), tl.arange(0, width)
        n_keys = tl.load(key_end + row * r_b)
        query = tl.load(q + row * q_b + head * q_h + numbers).to(tl.float32) * scale
        k += row * k_b + head // groups * k_h
        v += row * v_b + head // groups * v_h
        added += row * a_b + head * a_h
        if writes:
            place = tl.load(position + row * p_b)
            own_k = tl.load(new_k + row * nk_b + head // groups * nk_h + numbers)
            own_v = tl.load(new_v + row * nv_b + head // groups * nv_h + numbers)
            tl.store(k + place * k_s + numbers, own_k)
            tl.store(v + place * v_s + numbers, own_v)
        best = tl.full([block], float("-inf"), tl.float32)
        total = tl.zeros([block], tl.float32)
        mixed = tl.zeros([block, width], tl.float32)
        for first in range(0, n_keys, block):
            keys = first + places
            is_key = keys < n_keys
            there = tl.load(k + keys[:, None] * k_s + numbers[None, :], mask=is_key[:, None], other=0.0)
            brought = tl.load(v + keys[:, None] * v_s + numbers[None, :], mask=is_key[:, None], other=0.0)
            more = tl.load(added + keys * a_s, mask=is_key, other=float("-inf")).to(tl.float32)
            if writes:  # what was stored above may not have arrived yet
                is_new = (keys == place)[:, None]
                there, brought = tl.where(is_new, own_k[None, :], there), tl.where(is_new, own_v[None, :], brought)
            scores = tl.sum(there.to(tl.float32) * query[None, :], 1) + more
            new_best = tl.maximum(best, scores)
            anchor = tl.where(new_best == float("-inf"), 0.0, new_best)
            weights = tl.exp(scores - anchor)
            kept = tl.exp(best - anchor)
            mixed = mixed * kept[:, None] + brought.to(tl.float32) * weights[:, None]
            total = total * kept + weights
            best = new_best
        most = tl.max(best, 0)
        factors = tl.exp(best - tl.where(most == float("-inf"), 0.0, most))
        total = tl.sum(total * factors, 0)
        result = tl.sum(mixed * factors[:, None], 0) / tl.where(total == 0.0, 1.0, total)  # zeros if all are masked
        tl.store(out + row * o_b + head * o_h + numbers, result.to(out.dtype.element_ty))

    @triton.jit  # type: ignore[untyped-decorator]
    def _attend_split(  # type: ignore[no-untyped-def]
        q, k, v, added, key_end, mixes, totals, q_b, q_h, q_t, k_b, k_h, k_s, v_b, v_h, v_s, a_b, a_h, a_t, a_s,
        r_b, new_k, new_v, position, nk_b, nk_h, nv_b, nv_h, p_b, kv_heads, groups, span,
        scale: tl.constexpr, n_queries: tl.constexpr, room: tl.constexpr, width: tl.constexpr, block: tl.constexpr,
        writes: tl.constexpr, waits: tl.constexpr,
    ):  # fmt: skip
        """Compute softmax(q kᵀ · scale + added) v over `span` of the first `key_end` keys, for `_combine_splits`.

        One program per batch row, key-value head and span of keys computes all queries of the `groups` heads that share
        the keys, padded to `room`. It writes the mix of the values to `mixes` (row and head, split, query, width), and
        the logarithm of the sum of the exponentials, by which the mixes are weighted, to `totals`; -inf if all keys
        are masked.
        """
        if waits:
            tl.extra.cuda.gdc_launch_dependents()
            tl.extra.cuda.gdc_wait()
        row, head = (tl.program_id(0) // kv_heads).to(tl.int64), (tl.program_id(0) % kv_heads).to(tl.int64)
        split, n_splits = tl.program_id(1), tl.num_programs(1)
        queries, places, numbers = tl.arange(0, room), tl.arange(0, block), tl.arange(0, width)
        is_query = queries < groups * n_queries
        own_head, own_query = head * groups + queries // n_queries, queries % n_queries
        at = row * q_b + own_head * q_h + own_query * q_t
        query = tl.load(q + at[:, None] + numbers[None, :], mask=is_query[:, None], other=0.0)
        k += row * k_b + head * k_h
        v += row * v_b + head * v_h
        added_at = row * a_b + own_head * a_h + own_query * a_t
        if writes:
            place = tl.load(position + row * p_b)
            if place // span == split:
                tl.store(k + place * k_s + numbers, tl.load(new_k + row * nk_b + head * nk_h + numbers))
                tl.store(v + place * v_s + numbers, tl.load(new_v + row * nv_b + head * nv_h + numbers))
            tl.debug_barrier()
        best = tl.full([room], float("-inf"), tl.float32)
        total = tl.zeros([room], tl.float32)
        mixed = tl.zeros([room, width], tl.float32)
        n_keys = tl.minimum(tl.load(key_end + row * r_b), (split + 1) * span)
        for first in range(split * span, n_keys, block):
            keys = (first + places).to(tl.int64)
            is_key = keys < n_keys
            there = tl.load(k + keys[None, :] * k_s + numbers[:, None], mask=is_key[None, :], other=0.0)
            is_pair = is_query[:, None] & is_key[None, :]
            more = tl.load(added + added_at[:, None] + keys[None, :] * a_s, mask=is_pair, other=float("-inf"))
            scores = tl.dot(query, there, input_precision="ieee") * scale + more.to(tl.float32)
            new_best = tl.maximum(best, tl.max(scores, 1))
            anchor = tl.where(new_best == float("-inf"), 0.0, new_best)
            weights = tl.exp(scores - anchor[:, None])
            kept = tl.exp(best - anchor)
            brought = tl.load(v + keys[:, None] * v_s + numbers[None, :], mask=is_key[:, None], other=0.0)
            mixed = mixed * kept[:, None] + tl.dot(weights.to(brought.dtype), brought, input_precision="ieee")
            total = total * kept + tl.sum(weights, 1)
            best = new_best
        is_empty = total == 0.0
        result = mixed / tl.where(is_empty, 1.0, total)[:, None]
        at = (tl.program_id(0).to(tl.int64) * n_splits + split) * room + queries
        tl.store(mixes + at[:, None] * width + numbers[None, :], result, mask=is_query[:, None])
        log_total = tl.where(is_empty, float("-inf"), best + tl.log(tl.where(is_empty, 1.0, total)))
        tl.store(totals + at, log_total, mask=is_query)

    @triton.jit  # type: ignore[untyped-decorator]
    def _combine_splits(  # type: ignore[no-untyped-def]
        mixes, totals, out, o_b, o_h, o_t, kv_heads, groups, n_splits,
        n_queries: tl.constexpr, room: tl.constexpr, width: tl.constexpr, splits: tl.constexpr, waits: tl.constexpr,
    ):  # fmt: skip
        """Add up the mixes of `_attend_split`, for one batch row, head and query (one program each).

        `splits` is `n_splits` rounded up to a power of two.
        """
        if waits:
            tl.extra.cuda.gdc_launch_dependents()
            tl.extra.cuda.gdc_wait()
        row, head = (tl.program_id(0) // kv_heads).to(tl.int64), (tl.program_id(0) % kv_heads).to(tl.int64)
        query = tl.program_id(1)
        every, numbers = tl.arange(0, splits), tl.arange(0, width)
        at = (tl.program_id(0).to(tl.int64) * n_splits + every) * room + query
        is_split = every < n_splits
        log_totals = tl.load(totals + at, mask=is_split, other=float("-inf"))
        most = tl.max(log_totals, 0)
        weights = tl.exp(log_totals - tl.where(most == float("-inf"), 0.0, most))
        total = tl.sum(weights, 0)
        mixed = tl.load(mixes + at[:, None] * width + numbers[None, :], mask=is_split[:, None], other=0.0)
        result = tl.sum(mixed * weights[:, None], 0) / tl.where(total == 0.0, 1.0, total)
        at = row * o_b + (head * groups + query // n_queries) * o_h + (query % n_queries) * o_t
        tl.store(out + at + numbers, result.to(out.dtype.element_ty))


class NewTokens(NamedTuple):
    """New keys and values, (B, G, 1, D) each, and where they belong in the cache: (1,) or one place for each row."""

    k: Tensor
    v: Tensor
    position: Tensor


def attend_filled(
    q: Tensor, k: Tensor, v: Tensor, added: Tensor, key_end: Tensor, scale: float, new: NewTokens | None = None
) -> Tensor:
    """Return the attention of a few queries (B, H, T, D) to the first `key_end` keys and values, as `KernelSet.attend`.

    With `new` the new keys and values are written into `k` and `v` first. The tensors must be those that
    `TritonKernels.can_attend` supports.
    """
    batch, heads, n_queries, width = q.shape
    added = added.expand(batch, heads, n_queries, k.shape[2])
    out = torch.empty(batch, n_queries, heads, width, dtype=q.dtype, device=q.device).transpose(1, 2)
    n_keys, row_bytes = k.shape[2], width * q.element_size()
    n_splits = choose_splits(batch * k.shape[1], n_keys) if n_keys >= SPLIT_KEYS else 1
    if n_splits > 1 and heads // k.shape[1] * n_queries <= MAX_SPLIT_QUERIES:
        _attend_in_splits(q, k, v, added, key_end, scale, out, new, n_splits)
        return out
    if n_queries == 1 and (q.dtype == torch.float32 or heads == k.shape[1]):
        _attend_with_one(q, k, v, added, key_end, scale, out, new)
        return out
    # Measured on an H200 with heads of 64 in bfloat16: 32 to 288 keys, 12 to 4,096 programs.
    stages = 1
    if batch * heads <= FEW_PROGRAMS:
        block, warps = min(triton.next_power_of_2(max(n_keys, 16)), (1 << 15) // row_bytes), 4
    elif n_keys > 128 and row_bytes <= 128:
        block, warps, stages = 64, 2, 2
    else:
        block, warps = 16 if n_keys <= 64 else 32, max(1, row_bytes // 128)
    launch: Any = _attend_filled[(batch * heads,)]
    with on_device(q.device):
        launch(
            q, k, v, added, key_end, out,
            *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *added.stride(), *out.stride()[:3],
            key_end.expand(batch).stride(0), *_new_tokens(new, k, v, key_end), heads, heads // k.shape[1], scale,
            n_queries, width, block, new is not None,
            launches_early(q.device), num_warps=warps, num_stages=stages, **early_launch(q.device),
        )  # fmt: skip
    return out


def _new_tokens(new: NewTokens | None, k: Tensor, v: Tensor, position: Tensor) -> tuple[Any, ...]:
    """Return the arguments `new_k` to `p_b` of the kernels. Without new tokens the tensors only have to exist."""
    k, v, position = (k, v, position) if new is None else new
    return k, v, position, *k.stride()[:2], *v.stride()[:2], position.expand(len(k)).stride(0)


def _attend_with_one(
    q: Tensor, k: Tensor, v: Tensor, added: Tensor, key_end: Tensor, scale: float, out: Tensor, new: NewTokens | None
) -> None:
    """Write the attention of a single query q (B, H, 1, D) to the first `key_end` keys into `out`."""
    batch, heads, _, width = q.shape
    block, warps = choose_keys_at_once(batch * heads, k.shape[2])
    launch: Any = _attend_one[(batch * heads,)]
    with on_device(q.device):
        launch(
            q, k, v, added, key_end, out, *q.stride()[:2], *k.stride()[:3], *v.stride()[:3],
            added.stride(0), added.stride(1), added.stride(3), *out.stride()[:2], key_end.expand(batch).stride(0),
            *_new_tokens(new, k, v, key_end), heads, heads // k.shape[1], scale, width, block, new is not None,
            launches_early(q.device), num_warps=warps, num_stages=1, **early_launch(q.device),
        )  # fmt: skip


def choose_keys_at_once(n_programs: int, n_keys: int) -> tuple[int, int]:
    """Return how many keys a program for a single query reads at once, and its warps.

    Measured on an H200 with heads of 64 in bfloat16: 8 to 600 keys, 12 to 1,024 programs.
    """
    if n_keys <= 64:
        return 16, 1 if n_programs > FEW_PROGRAMS else 2
    if n_programs > FEW_PROGRAMS:
        return 32, 2
    return (32, 4) if n_programs > FEW_PROGRAMS // 4 else (128, 8)


def _attend_in_splits(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    added: Tensor,
    key_end: Tensor,
    scale: float,
    out: Tensor,
    new: NewTokens | None,
    n_splits: int,
) -> None:
    """Write the attention of q (B, H, T, D) to the first `key_end` of many keys into `out`: in splits, then combined.

    The number of splits depends on shapes only, because a recorded step cannot read `key_end` on the host. Splits
    beyond `key_end` read nothing.
    """
    batch, heads, n_queries, width = q.shape
    kv_heads, n_keys = k.shape[1], k.shape[2]
    groups = heads // kv_heads
    span = triton.cdiv(triton.cdiv(n_keys, n_splits), SPLIT_BLOCK) * SPLIT_BLOCK
    n_splits = triton.cdiv(n_keys, span)
    room = max(16, triton.next_power_of_2(groups * n_queries))  # a tensor core multiplies at least 16 rows
    mixes = torch.empty(batch * kv_heads, n_splits, room, width, dtype=torch.float32, device=q.device)
    totals = torch.empty(batch * kv_heads, n_splits, room, dtype=torch.float32, device=q.device)
    block = min(SPLIT_BLOCK, SPLIT_BYTES // (width * q.element_size()))
    attend: Any = _attend_split[(batch * kv_heads, n_splits)]
    combine: Any = _combine_splits[(batch * kv_heads, groups * n_queries)]
    with on_device(q.device):
        attend(
            q, k, v, added, key_end, mixes, totals,
            *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *added.stride(), key_end.expand(batch).stride(0),
            *_new_tokens(new, k, v, key_end), kv_heads, groups, span, scale, n_queries, room, width, block,
            new is not None, launches_early(q.device), num_warps=4, num_stages=2, **early_launch(q.device),
        )  # fmt: skip
        combine(
            mixes, totals, out, *out.stride()[:3], kv_heads, groups, n_splits,
            n_queries, room, width, triton.next_power_of_2(n_splits), launches_early(q.device),
            num_warps=2, **early_launch(q.device),
        )  # fmt: skip


def choose_splits(n_heads: int, n_keys: int) -> int:
    """Return how many programs share the keys of a row and key-value head, of which there are `n_heads` in the batch.

    Enough to keep a GPU busy, but each has at least `KEYS_PER_SPLIT` keys.
    """
    return max(1, min(SPLIT_PROGRAMS // n_heads, n_keys // KEYS_PER_SPLIT, MAX_SPLITS))


@cache
def launches_early(device: torch.device) -> bool:
    """Return whether a kernel can be launched on this device while the one before it still runs.

    Kernels that are launched so (`early_launch`) wait for the one before them before they read what it has written.
    """
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def early_launch(device: torch.device) -> dict[str, bool]:
    """Return the launch options of a kernel that waits for the one before it: programmatic dependent launch."""
    return {"launch_pdl": True} if launches_early(device) else {}


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Return a context manager that makes a device current, for Triton to launch on. `torch.compile` needs none."""
    return nullcontext() if torch.compiler.is_compiling() or device.type != "cuda" else torch.cuda.device(device)
