"""Attention of training with short sequences: one Triton program computes all queries of a sequence and head.

Up to `MAX_LENGTH` queries and keys fit into one program, which reads them once. The backward pass is one kernel too: it
computes the weights again instead of reading them, and writes the gradients of queries, keys and values side by side,
as the joined projections need them, with the sums of their columns, which are the gradients of biases:

    P = softmax(Q Kᵀ · scale)    O = P V
    ∂P = ∂O Vᵀ    ∂S = P · (∂P - rowsum(P · ∂P))    ∂Q = ∂S K · scale    ∂K = ∂Sᵀ Q · scale    ∂V = Pᵀ ∂O

Each row of ∂S sums to 0, because adding a number to all scores of a query changes nothing. Therefore ∂K sums to 0 over
the keys: the gradient of the keys' bias is 0, and is not computed.

Scores and sums are in float32, products in the dtype of the inputs. A query that may attend to no key gets zeros and
zero gradients. The functions are registered as torch operators, so that compiled code can call them. Without a GPU they
are computed in plain torch. In the kernels, `q_b`, `q_h` and `q_t` are strides of `q` by batch row, head and query.

Shapes: B batch, H heads, T queries, S keys, D head size, C = H · D.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor

from glassformer.kernels.triton_launch import HAS_TRITON, on_device

MAX_LENGTH = 128
"""The most queries, and the most keys."""
MAX_TILE = MAX_LENGTH * 64
"""The most numbers of the queries of one program, and of its keys: with more, they exceed the memory of a program."""
MIN_SHARED_MEMORY = 80 * 1024
"""Bytes of shared memory that the longest sequences need in bf16. GPUs with less of it compute half as long ones."""

if HAS_TRITON:
    import triton
    import triton.language as tl

    @triton.jit  # type: ignore[untyped-decorator]
    def _allowed_keys(  # type: ignore[no-untyped-def]
        real, queries, keys, n_keys, r_s, has_real: tl.constexpr, causal: tl.constexpr
    ):
        """Return which keys (columns) each query (row) may attend to. `real` points to those of the sequence."""
        is_key = keys < n_keys
        if has_real:
            is_key = is_key & (tl.load(real + keys * r_s, mask=is_key, other=0) != 0)
        allowed = is_key[None, :]
        if causal:
            allowed = allowed & (keys[None, :] <= queries[:, None])
        return allowed

    @triton.jit
    def _softmax(scores, allowed, scale):  # type: ignore[no-untyped-def]
        """Return weights that are not normalized, and the factors of their rows that normalize them."""
        scores = tl.where(allowed, scores * (scale * 1.4426950408889634), float("-inf"))  # for a power of 2, not of e
        best = tl.max(scores, 1)
        best = tl.where(best == float("-inf"), 0.0, best)
        weights = tl.exp2(scores - best[:, None])
        total = tl.sum(weights, 1)
        return weights, 1.0 / tl.where(total == 0.0, 1.0, total)

    @triton.jit(do_not_specialize=["n_queries", "n_keys", "r_b", "r_s"])  # type: ignore[untyped-decorator]
    def _attend(  # type: ignore[no-untyped-def]
        q, k, v, real, out, q_b, q_h, q_t, k_b, k_h, k_s, v_b, v_h, v_s, r_b, r_s, o_b, o_t, n_queries, n_keys, scale,
        heads: tl.constexpr, has_real: tl.constexpr, causal: tl.constexpr, width: tl.constexpr,
        query_block: tl.constexpr, key_block: tl.constexpr, lane_block: tl.constexpr,
    ):  # fmt: skip
        """Compute one head of one sequence (one program each)."""
        row, head = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads
        queries, keys, lanes = tl.arange(0, query_block), tl.arange(0, key_block), tl.arange(0, lane_block)
        is_query = (queries < n_queries)[:, None] & (lanes < width)[None, :]
        is_key = (keys < n_keys)[:, None] & (lanes < width)[None, :]
        allowed = _allowed_keys(real + row * r_b, queries, keys, n_keys, r_s, has_real, causal)
        q_at, o_at = queries[:, None] * q_t + lanes[None, :], queries[:, None] * o_t + lanes[None, :]
        k_at, v_at = keys[:, None] * k_s + lanes[None, :], keys[:, None] * v_s + lanes[None, :]
        query = tl.load(q + row * q_b + head * q_h + q_at, mask=is_query, other=0.0)
        key = tl.load(k + row * k_b + head * k_h + k_at, mask=is_key, other=0.0)
        value = tl.load(v + row * v_b + head * v_h + v_at, mask=is_key, other=0.0)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee")
        weights, factors = _softmax(scores, allowed, scale)
        mixed = tl.dot(weights.to(value.dtype), value, input_precision="ieee") * factors[:, None]
        tl.store(out + row * o_b + head * width + o_at, mixed.to(out.dtype.element_ty), mask=is_query)

    @triton.jit(do_not_specialize=["n_queries", "n_keys", "r_b", "r_s"])  # type: ignore[untyped-decorator]
    def _attend_backward(  # type: ignore[no-untyped-def]
        gradient, q, k, v, real, of_q, of_k, of_v, q_sums, k_sums, v_sums, g_b, g_t, q_b, q_h, q_t, k_b, k_h, k_s,
        v_b, v_h, v_s, r_b, r_s, of_q_b, of_q_t, of_k_b, of_k_s, q_sums_b, k_sums_b, n_queries, n_keys, scale,
        heads: tl.constexpr, has_real: tl.constexpr, causal: tl.constexpr, width: tl.constexpr,
        query_block: tl.constexpr, key_block: tl.constexpr, lane_block: tl.constexpr,
    ):  # fmt: skip
        """Compute the gradients of one head of one sequence (one program each), and sum their columns.

        The strides of `of_v` and `v_sums` are those of `of_k` and `k_sums`.
        """
        row, head = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads
        queries, keys, lanes = tl.arange(0, query_block), tl.arange(0, key_block), tl.arange(0, lane_block)
        is_lane = lanes < width
        is_query = (queries < n_queries)[:, None] & is_lane[None, :]
        is_key = (keys < n_keys)[:, None] & is_lane[None, :]
        allowed = _allowed_keys(real + row * r_b, queries, keys, n_keys, r_s, has_real, causal)
        g_at, q_at = queries[:, None] * g_t + lanes[None, :], queries[:, None] * q_t + lanes[None, :]
        k_at, v_at = keys[:, None] * k_s + lanes[None, :], keys[:, None] * v_s + lanes[None, :]
        to_q, to_k = queries[:, None] * of_q_t + lanes[None, :], keys[:, None] * of_k_s + lanes[None, :]
        query = tl.load(q + row * q_b + head * q_h + q_at, mask=is_query, other=0.0)
        key = tl.load(k + row * k_b + head * k_h + k_at, mask=is_key, other=0.0)
        value = tl.load(v + row * v_b + head * v_h + v_at, mask=is_key, other=0.0)
        upstream = tl.load(gradient + row * g_b + head * width + g_at, mask=is_query, other=0.0)
        kind = query.dtype
        weights, factors = _softmax(tl.dot(query, tl.trans(key), input_precision="ieee"), allowed, scale)
        weights = weights * factors[:, None]
        of_weights = tl.dot(upstream, tl.trans(value), input_precision="ieee")
        of_value = tl.dot(tl.trans(weights.to(kind)), upstream, input_precision="ieee")
        tl.store(of_v + row * of_k_b + head * width + to_k, of_value.to(kind), mask=is_key)
        mean = tl.sum(weights * of_weights, 1)
        of_scores = (weights * (of_weights - mean[:, None]) * scale).to(kind)
        of_query = tl.dot(of_scores, key, input_precision="ieee")
        tl.store(of_q + row * of_q_b + head * width + to_q, of_query.to(kind), mask=is_query)
        of_key = tl.dot(tl.trans(of_scores), query, input_precision="ieee")
        tl.store(of_k + row * of_k_b + head * width + to_k, of_key.to(kind), mask=is_key)
        column = head * width + lanes
        tl.store(q_sums + row * q_sums_b + column, tl.sum(of_query, 0), mask=is_lane)
        tl.store(k_sums + row * k_sums_b + column, tl.zeros([lane_block], tl.float32), mask=is_lane)
        tl.store(v_sums + row * k_sums_b + column, tl.sum(of_value, 0), mask=is_lane)


@cache
def max_length(device: torch.device, head_dim: int) -> int:
    """Return the most queries and keys for heads of this size. 0: the device has no kernel."""
    if device.type != "cuda":
        return MAX_LENGTH
    if not HAS_TRITON:
        return 0
    memory = getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 0)
    longest = MAX_LENGTH if memory >= MIN_SHARED_MEMORY else MAX_LENGTH // 2
    while longest * _lane_block(head_dim) > MAX_TILE:
        longest //= 2
    return longest if longest >= 32 else 0


@torch.library.custom_op("glassformer::short_attention", mutates_args=())
def short_attention(q: Tensor, k: Tensor, v: Tensor, real: Tensor | None, causal: bool, scale: float) -> Tensor:
    """Return the attention of q (B, H, T, D) to k and v (B, H, S, D) as (B, T, H, D), which has the heads side by side.

    Args:
        real: (B, S), True for keys that may be attended to. None allows all.
        causal: Whether query t may attend to the keys from 0 to t only; then T must be S.
        scale: Factor of q kᵀ.
    """
    batch, heads, n_queries, width = q.shape
    out = q.new_empty(batch, n_queries, heads, width)
    if not _can_use_kernel(q, k, v):
        weights = _weights(q, k, real, causal, scale)
        return out.copy_((weights @ v.to(weights.dtype)).transpose(1, 2))
    mask, *mask_strides = _mask_argument(real, q)
    with on_device(q.device):
        kernel: Any = _attend[(batch * heads,)]
        kernel(
            q, k, v, mask, out, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *mask_strides, *out.stride()[:2],
            n_queries, k.shape[2], scale, heads, real is not None, causal, width,
            **launch_options(n_queries, k.shape[2], width),
        )  # fmt: skip
    return out


@torch.library.custom_op("glassformer::short_self_attention_gradient", mutates_args=())
def short_self_attention_gradient(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, real: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Return the gradients by q, k and v side by side, (B, T, 3 C), and their sums over T in float32, (B, 3 C).

    `gradient` is that of the result, (B, T, H, D). The other arguments are those of `short_attention`.
    """
    batch, heads, length, width = q.shape
    joined = q.new_empty(batch, length, 3 * heads * width)
    sums = q.new_empty(batch, 3 * heads * width, dtype=_wide(q))
    _fill_gradients(gradient, q, k, v, real, causal, scale, joined.chunk(3, 2), sums.chunk(3, 1))
    return joined, sums


@torch.library.custom_op("glassformer::short_cross_attention_gradient", mutates_args=())
def short_cross_attention_gradient(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, real: Tensor | None, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradient by q, (B, T, C), those by k and v side by side, (B, S, 2 C), and the sums of both.

    The arguments are those of `short_self_attention_gradient`, without a causal mask. The sums are (B, C) and
    (B, 2 C), in float32.
    """
    batch, heads, n_queries, width = q.shape
    of_q, of_kv = q.new_empty(batch, n_queries, heads * width), q.new_empty(batch, k.shape[2], 2 * heads * width)
    q_sums = q.new_empty(batch, heads * width, dtype=_wide(q))
    kv_sums = q.new_empty(batch, 2 * heads * width, dtype=_wide(q))
    to, sums_to = (of_q, *of_kv.chunk(2, 2)), (q_sums, *kv_sums.chunk(2, 1))
    _fill_gradients(gradient, q, k, v, real, False, scale, to, sums_to)
    return of_q, of_kv, q_sums, kv_sums


@short_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, real: Tensor | None, causal: bool, scale: float) -> Tensor:
    return q.new_empty(q.shape[0], q.shape[2], q.shape[1], q.shape[3])


@short_self_attention_gradient.register_fake
def _(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, real: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    batch, heads, length, width = q.shape
    joined = q.new_empty(batch, length, 3 * heads * width)
    return joined, q.new_empty(batch, 3 * heads * width, dtype=_wide(q))


@short_cross_attention_gradient.register_fake
def _(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, real: Tensor | None, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch, heads, n_queries, width = q.shape
    of_q, of_kv = q.new_empty(batch, n_queries, heads * width), q.new_empty(batch, k.shape[2], 2 * heads * width)
    sums = [q.new_empty(batch, n * heads * width, dtype=_wide(q)) for n in (1, 2)]
    return of_q, of_kv, sums[0], sums[1]


def _fill_gradients(
    gradient: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    real: Tensor | None,
    causal: bool,
    scale: float,
    to: tuple[Tensor, ...],
    sums_to: tuple[Tensor, ...],
) -> None:
    """Write the gradients by q, k and v into `to`, (B, T or S, C) each, and their sums into `sums_to`, (B, C)."""
    gradient = gradient if gradient.stride(-1) == 1 and gradient.stride(-2) == q.shape[3] else gradient.contiguous()
    if not _can_use_kernel(q, k, v, gradient):
        for x, out, sums in zip(_gradients(gradient, q, k, v, real, causal, scale), to, sums_to, strict=True):
            rows = x.transpose(1, 2).flatten(2)  # (B, T or S, C)
            out.copy_(rows)
            sums.copy_(rows.sum(1))
        sums_to[1].zero_()
        return
    batch, heads, n_queries, width = q.shape
    mask, *mask_strides = _mask_argument(real, q)
    strides = [*gradient.stride()[:2], *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *mask_strides]
    strides += [*to[0].stride()[:2], *to[1].stride()[:2], sums_to[0].stride(0), sums_to[1].stride(0)]
    with on_device(q.device):
        kernel: Any = _attend_backward[(batch * heads,)]
        kernel(
            gradient, q, k, v, mask, *to, *sums_to, *strides, n_queries, k.shape[2], scale, heads,
            real is not None, causal, width, **launch_options(n_queries, k.shape[2], width),
        )  # fmt: skip


def _can_use_kernel(*tensors: Tensor) -> bool:
    """Whether the kernels can be used: on a GPU with Triton, for lengths that fit a program."""
    q, k = tensors[:2]
    if not q.is_cuda or q.element_size() > 4:
        return False
    longest = max_length(q.device, q.shape[3]) * 2 // q.element_size()
    fits = max(q.shape[2], k.shape[2]) <= longest
    return fits and all(x.stride(-1) == 1 and x.numel() > 0 and x.dtype == q.dtype for x in tensors)


def launch_options(n_queries: int, n_keys: int, width: int) -> dict[str, int]:
    """Return the sizes of a program's blocks, few different ones because each needs a compilation, and its warps.

    On an H200, 4 warps were the fastest for 32, 64 and 128 tokens, forward and backward together. Several heads per
    program, loaded ahead of time, and a limit of registers were not faster.
    """
    query_block, key_block = (max(32, triton.next_power_of_2(length)) for length in (n_queries, n_keys))
    blocks = {"query_block": query_block, "key_block": key_block, "lane_block": _lane_block(width)}
    return blocks | {"num_warps": 4, "num_stages": 1}


def _lane_block(width: int) -> int:
    """Return the size of a head's block: the next power of two, and at least 16, as products in Triton need it."""
    return max(16, 1 << (width - 1).bit_length())


def _mask_argument(real: Tensor | None, other: Tensor) -> tuple[Tensor, int, int]:
    """Return a mask as the kernels take it, with its strides. `other` takes the place of no mask."""
    return (other, 0, 0) if real is None else (real.view(torch.uint8), real.stride(0), real.stride(1))


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _weights(q: Tensor, k: Tensor, real: Tensor | None, causal: bool, scale: float) -> Tensor:
    """Return the attention weights (B, H, T, S), in float32 at least."""
    scores = q.to(_wide(q)) @ k.to(_wide(q)).mT * scale
    allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device)  # (T, S)
    allowed = allowed.tril() if causal else allowed
    if real is not None:
        allowed = allowed & real[:, None, None]  # (B, 1, T, S)
    # The lowest finite number instead of -inf: the softmax of a row of -inf is 0/0 = NaN.
    return scores.masked_fill(~allowed, torch.finfo(scores.dtype).min).softmax(-1).masked_fill(~allowed, 0.0)


def _gradients(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, real: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients by q, k and v, (B, H, T or S, D), in float32 at least, by the formulas above."""
    weights = _weights(q, k, real, causal, scale)
    upstream = gradient.to(weights.dtype).transpose(1, 2)  # (B, H, T, D)
    wide_q, wide_k, wide_v = (x.to(weights.dtype) for x in (q, k, v))
    of_weights = upstream @ wide_v.mT
    of_scores = weights * (of_weights - (weights * of_weights).sum(-1, keepdim=True)) * scale
    return of_scores @ wide_k, of_scores.mT @ wide_q, weights.mT @ upstream
