"""Attention of one decoding step to a long cache on a GPU, in Triton: several programs share the keys of one row.

Each reads a part of the keys, and a second kernel combines their results. `triton_attention.py` describes the
arguments that both have.
"""

from typing import Any

import torch
from torch import Tensor

from glassformer.kernels.kernel_set import NewTokens
from glassformer.kernels.triton_launch import HAS_TRITON, early_launch, launches_early, on_device

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

if HAS_TRITON:
    import triton
    import triton.language as tl

    @triton.jit  # type: ignore[untyped-decorator]
    def load_rotated(x, is_there, cos, sin, width: tl.constexpr, rotates: tl.constexpr):  # type: ignore[no-untyped-def]
        """Return the vectors of `width` numbers at x, zeros unless `is_there`, with `rotates` rotated by their angles.

        The cosines of the angles are at `cos`. x is one pointer, or a column of them.
        """
        numbers = tl.arange(0, width)
        own = tl.load(x + numbers, mask=is_there, other=0.0)
        if rotates:
            half: tl.constexpr = width // 2
            other = tl.load(x + (numbers + half) % width, mask=is_there, other=0.0).to(tl.float32)
            c, s = tl.load(cos + numbers % half).to(tl.float32), tl.load(sin + numbers % half).to(tl.float32)
            own = (own.to(tl.float32) * c + tl.where(numbers < half, -other, other) * s).to(own.dtype)
        return own

    @triton.jit  # type: ignore[untyped-decorator]
    def _attend_split(  # type: ignore[no-untyped-def]
        q, k, v, added, key_end, mixes, totals, q_b, q_h, q_t, k_b, k_h, k_s, v_b, v_h, v_s, a_b, a_h, a_t, a_s,
        r_b, new_k, new_v, position, nk_b, nk_h, nv_b, nv_h, p_b, cos, sin, c_b, kv_heads, groups, span,
        scale: tl.constexpr, n_queries: tl.constexpr, room: tl.constexpr, width: tl.constexpr, block: tl.constexpr,
        writes: tl.constexpr, rotates: tl.constexpr, shares_added: tl.constexpr, waits: tl.constexpr,
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
        # These numbers are loaded together, before anything that waits for one of them.
        n_keys = tl.minimum(tl.load(key_end + row * r_b), (split + 1) * span)
        place = tl.load(position + row * p_b)
        queries, places, numbers = tl.arange(0, room), tl.arange(0, block), tl.arange(0, width)
        is_query = queries < groups * n_queries
        own_head, own_query = head * groups + queries // n_queries, queries % n_queries
        cos, sin = cos + row * c_b, sin + row * c_b
        at = row * q_b + own_head * q_h + own_query * q_t
        query = load_rotated(q + at[:, None], is_query[:, None], cos, sin, width, rotates)
        k += row * k_b + head * k_h
        v += row * v_b + head * v_h
        added_at = row * a_b + own_head * a_h + own_query * a_t
        if writes:  # noqa: SIM102 (Triton cannot join a constant and a number by `and`)
            if place // span == split:
                new_k += row * nk_b + head * nk_h
                tl.store(k + place * k_s + numbers, load_rotated(new_k, True, cos, sin, width, rotates))
                tl.store(v + place * v_s + numbers, tl.load(new_v + row * nv_b + head * nv_h + numbers))
                tl.debug_barrier()  # other threads of this program read them
        best = tl.full([room], float("-inf"), tl.float32)
        total = tl.zeros([room], tl.float32)
        mixed = tl.zeros([room, width], tl.float32)
        for first in range(split * span, n_keys, block):
            keys = (first + places).to(tl.int64)
            is_key = keys < n_keys
            there = tl.load(k + keys[None, :] * k_s + numbers[:, None], mask=is_key[None, :], other=0.0)
            if shares_added:
                more = tl.load(added + row * a_b + keys * a_s, mask=is_key, other=float("-inf"))[None, :]
            else:
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


def attend_in_splits(
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
            *new_tokens(new, k, v, key_end), kv_heads, groups, span, scale, n_queries, room, width, block,
            *flags(new, added), launches_early(q.device), num_warps=4, num_stages=2, **early_launch(q.device),
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


def new_tokens(new: NewTokens | None, k: Tensor, v: Tensor, position: Tensor) -> tuple[Any, ...]:
    """Return the arguments `new_k` to `c_b` of the kernels. Those that are not used only have to exist."""
    angles = None
    if new is not None:
        k, v, (_, _, position), angles = new
    cos, sin = (k, k) if angles is None else angles
    strides = *k.stride()[:2], *v.stride()[:2], position.expand(len(k)).stride(0)
    return k, v, position, *strides, cos, sin, cos.expand(len(k), -1, -1, -1).stride(0)


def flags(new: NewTokens | None, added: Tensor) -> tuple[bool, bool, bool]:
    """Return the arguments `writes`, `rotates` and `shares_added` of the kernels."""
    shares_added = added.stride(1) == 0 and (added.shape[2] == 1 or added.stride(2) == 0)
    return new is not None, new is not None and new.angles is not None, shares_added
