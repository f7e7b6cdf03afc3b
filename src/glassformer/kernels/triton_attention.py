"""Attention of one decoding step on a GPU, in Triton.

torch's kernels are tuned for many queries and read the cache to its full capacity. These read the filled part only. A
short cache is read by one program per head. A long one is divided: several programs read a part of the keys each, and a
second kernel combines their results.

The functions with `@triton.jit` run on the GPU, as many parallel programs. Their arguments `q_b`, `q_h`, `q_t` and the
like are strides: of `q` by batch row, head and query.

With `writes` the kernels also write the new key and value of each batch row into the cache, at `position`. Every
program that reads them has written them before, so that none waits for another. With `rotates` they rotate the new key
and the query first, by the angles of `cos` and `sin`: a kernel of its own for that would take longer to launch.
"""

from typing import Any

import torch
from torch import Tensor

from glassformer.kernels.kernel_set import NewTokens
from glassformer.kernels.triton_launch import HAS_TRITON, early_launch, launches_early, on_device
from glassformer.kernels.triton_split_attention import (
    MAX_SPLIT_QUERIES,
    SPLIT_KEYS,
    attend_in_splits,
    choose_splits,
    flags,
    new_tokens,
)

FEW_PROGRAMS = 256
"""Up to this many Triton programs leave a GPU partly idle, so each one reads larger blocks of keys."""

if HAS_TRITON:
    import triton
    import triton.language as tl

    from glassformer.kernels.triton_split_attention import load_rotated

    @triton.jit  # type: ignore[untyped-decorator]
    def _attend_filled(  # type: ignore[no-untyped-def]
        q, k, v, added, key_end, out, q_b, q_h, q_t, k_b, k_h, k_s, v_b, v_h, v_s, a_b, a_h, a_t, a_s, o_b, o_h, o_t,
        r_b, new_k, new_v, position, nk_b, nk_h, nv_b, nv_h, p_b, cos, sin, c_b, heads, groups,
        scale: tl.constexpr, n_queries: tl.constexpr, width: tl.constexpr, block: tl.constexpr, writes: tl.constexpr,
        rotates: tl.constexpr, shares_added: tl.constexpr, waits: tl.constexpr,
    ):  # fmt: skip
        """Compute softmax(q kᵀ · scale + added) v over the first `key_end` keys, for `attend_filled`.

        One program per batch row and head computes all queries, with an online softmax over blocks of keys. `key_end`
        points to the number of filled keys of each row, at stride `r_b`. Other strides are named by tensor and axis:
        `k_h` is that of the keys from head to head. `groups` query heads share one key head. With `shares_added`, all
        queries of a row have the same `added`.
        """
        if waits:
            tl.extra.cuda.gdc_launch_dependents()
            tl.extra.cuda.gdc_wait()
        row, head = (tl.program_id(0) // heads).to(tl.int64), (tl.program_id(0) % heads).to(tl.int64)
        queries, places, numbers = tl.arange(0, 16), tl.arange(0, block), tl.arange(0, width)
        is_query = queries < n_queries
        cos, sin = cos + row * c_b, sin + row * c_b
        query = load_rotated(
            q + (row * q_b + head * q_h + queries * q_t)[:, None], is_query[:, None], cos, sin, width, rotates
        )
        k += row * k_b + head // groups * k_h
        v += row * v_b + head // groups * v_h
        added += row * a_b + head * a_h
        if writes:
            place = tl.load(position + row * p_b)
            new_k += row * nk_b + head // groups * nk_h
            tl.store(k + place * k_s + numbers, load_rotated(new_k, True, cos, sin, width, rotates))
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
            if shares_added:
                more = tl.load(added + keys * a_s, mask=is_key, other=float("-inf"))[None, :]
            else:
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
        r_b, new_k, new_v, position, nk_b, nk_h, nv_b, nv_h, p_b, cos, sin, c_b, heads, groups,
        scale: tl.constexpr, width: tl.constexpr, block: tl.constexpr, writes: tl.constexpr, rotates: tl.constexpr,
        waits: tl.constexpr,
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
        cos, sin = cos + row * c_b, sin + row * c_b
        query = load_rotated(q + row * q_b + head * q_h, True, cos, sin, width, rotates).to(tl.float32) * scale
        k += row * k_b + head // groups * k_h
        v += row * v_b + head // groups * v_h
        added += row * a_b + head * a_h
        if writes:
            place = tl.load(position + row * p_b)
            own_k = load_rotated(new_k + row * nk_b + head // groups * nk_h, True, cos, sin, width, rotates)
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


def attend_filled(
    q: Tensor, k: Tensor, v: Tensor, added: Tensor, key_end: Tensor, scale: float, new: NewTokens | None = None
) -> Tensor:
    """Return the attention of a few queries (B, H, T, D) to the first `key_end` keys and values, as `KernelSet.attend`.

    With `new` the new keys and values are written into `k` and `v` first; with its angles there is one query for each
    head. The tensors must be those that `TritonKernels.can_attend` supports.
    """
    batch, heads, n_queries, width = q.shape
    added = added.expand(batch, heads, n_queries, k.shape[2])
    out = torch.empty(batch, n_queries, heads, width, dtype=q.dtype, device=q.device).transpose(1, 2)
    n_keys, row_bytes = k.shape[2], width * q.element_size()
    n_splits = choose_splits(batch * k.shape[1], n_keys) if n_keys >= SPLIT_KEYS else 1
    if n_splits > 1 and heads // k.shape[1] * n_queries <= MAX_SPLIT_QUERIES:
        attend_in_splits(q, k, v, added, key_end, scale, out, new, n_splits)
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
            key_end.expand(batch).stride(0), *new_tokens(new, k, v, key_end), heads, heads // k.shape[1], scale,
            n_queries, width, block, *flags(new, added), launches_early(q.device), num_warps=warps,
            num_stages=stages, **early_launch(q.device),
        )  # fmt: skip
    return out


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
            *new_tokens(new, k, v, key_end), heads, heads // k.shape[1], scale, width, block,
            *flags(new, added)[:2], launches_early(q.device), num_warps=warps, num_stages=1, **early_launch(q.device),
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
