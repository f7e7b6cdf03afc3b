"""The one place where scores become weights: softmax(q kᵀ · scale + bias) v, over what the mask allows.

Three backends compute the same function. `math` is the formula, line by line; `sdpa` is torch's fused kernel, and for
a few queries one of ours (`kernels/`); `flex` is torch's flex attention, which inside `torch.compile`
becomes a kernel that skips what the mask forbids, and outside it is slow. They agree to rounding, with every mask, in
training and in evaluation; for one random seed `math` and `sdpa` even drop the same weights on the CPU.

A query that may attend to nothing gets zeros, and sends back zero gradients.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.kernels.kernel_set import KernelSet
from glassformer.nn.masks import AdditiveMask, Mask
from glassformer.nn.tensor_checks import check_broadcasts, check_divides, check_probability

Backend = Literal["sdpa", "math", "flex"]


class Attended(NamedTuple):
    """What `attend` returns: the mixed values, and the weights where they were asked for."""

    output: Tensor  # (B, H, T, D)
    weights: Tensor | None  # (B, H, T, S)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    need_weights: bool = False,
    backend: Backend = "sdpa",
) -> Attended:
    """Scaled dot-product attention (Vaswani et al. 2017, equation 1).

    q is (B, H, T, D); k and v are (B, G, S, D), where G divides H: each key-value head serves H/G query heads. `bias`
    broadcasts to (B, H, T, S) and is added to the scores; it is finite, for what may not be attended is the mask's to
    say. `dropout` drops weights; pass 0 outside training. The weights returned are those before dropout, and asking for
    them never changes the output.
    """
    mask = Mask() if mask is None else mask
    _check(q, k, v, mask, bias, dropout, backend)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    output = _BACKENDS[backend](q, k, v, mask, bias, scale, dropout)
    weights = attention_weights(q, k, mask=mask, bias=bias, scale=scale) if need_weights else None
    return Attended(output, weights)


def attention_weights(q: Tensor, k: Tensor, *, mask: Mask, bias: Tensor | None, scale: float) -> Tensor:
    """The weights alone, (B, H, T, S): each row sums to 1, or to 0 where nothing may be attended."""
    allowed = mask.dense(q.shape[2], k.shape[2], q.device)
    return masked_softmax(q, k, allowed, bias, scale)


def masked_softmax(q: Tensor, k: Tensor, allowed: Tensor | None, bias: Tensor | None, scale: float) -> Tensor:
    """Softmax over the allowed keys, computed in at least float32 and returned in the dtype of q."""
    dtype = q.dtype
    if dtype in (torch.float16, torch.bfloat16):
        q = q.float()  # a product of two hundreds is beyond float16
    k = k.to(q.dtype)  # a cache may keep shorter ones
    scores = (q * scale) @ _repeat_heads(k, q.shape[1]).transpose(-2, -1)  # (B, H, T, S)
    if bias is not None:
        scores = scores + bias
    if allowed is None:
        return scores.softmax(-1).to(dtype)
    # The lowest finite number, not minus infinity: a row with nothing allowed must not become 0/0 on its way to zeros.
    scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
    return scores.softmax(-1).masked_fill(~allowed, 0.0).to(dtype)


class Attend(nn.Module):
    """`attend` as a module without parameters, so that a hook on it sees q, k, mask and bias by name."""

    def __init__(self, *, scale: float, dropout: float = 0.0, backend: Backend = "sdpa"):
        super().__init__()
        check_probability("attention dropout", dropout)
        check_backend(backend)
        self.scale = scale
        self.dropout = dropout
        self.backend: Backend = backend

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, mask: Mask | None, bias: Tensor | None) -> Tensor:
        """Shapes as in `attend`; weights are dropped in training only."""
        dropout = self.dropout if self.training else 0.0
        return attend(q, k, v, mask=mask, bias=bias, scale=self.scale, dropout=dropout, backend=self.backend).output

    def extra_repr(self) -> str:
        """What `print(model)` shows."""
        return f"scale={self.scale:.4g}, dropout={self.dropout}, backend={self.backend}"


def reads_unfilled(model: nn.Module, keys: Tensor, kernels: KernelSet) -> bool:
    """Whether a decoding step of the model reads such a cache to its full capacity, not only the filled part."""
    is_fused = all(module.backend == "sdpa" for module in model.modules() if isinstance(module, Attend))
    return not (is_fused and kernels.reads_only_filled(keys, next(model.parameters())))


def _check(q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None, dropout: float, backend: str) -> None:
    if not isinstance(mask, Mask):
        raise TypeError(
            f"mask is a {type(mask).__name__}: expected a Mask, as in Mask(causal=True), Mask(real=...) for a "
            "(batch, keys) tensor, or Mask(allowed=...) for one that broadcasts to (batch, heads, queries, keys)"
        )
    check_backend(backend)
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 4:
            raise ValueError(f"{name} has shape {tuple(x.shape)}: expected (batch, heads, length, head size)")
    if k.shape[:3] != v.shape[:3] or k.shape[0] != q.shape[0] or k.shape[3] != q.shape[3]:
        shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in (("q", q), ("k", k), ("v", v)))
        raise ValueError(f"{shapes}: expected one batch size and head size, and one length for k and v")
    check_divides("key-value heads", k.shape[1], "heads", q.shape[1])
    check_probability("dropout", dropout)
    shape = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    mask.check(*shape)
    if bias is not None:
        check_broadcasts("bias", bias, shape)
        if not bias.is_floating_point():
            raise TypeError(
                f"bias has dtype {bias.dtype}: expected a floating-point tensor that is added to the scores"
            )


def check_backend(backend: str) -> None:
    """`backend` is one of those there are."""
    if backend not in _BACKENDS:
        raise ValueError(f"backend={backend!r}: expected one of {', '.join(_BACKENDS)}")


def _repeat_heads(x: Tensor, n_heads: int) -> Tensor:
    groups = n_heads // x.shape[1]
    return x if groups == 1 else x.repeat_interleave(groups, dim=1)  # (B, G, S, D) -> (B, H, S, D)


def _math(q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None, scale: float, dropout: float) -> Tensor:
    weights = attention_weights(q, k, mask=mask, bias=bias, scale=scale)
    return F.dropout(weights, dropout) @ _repeat_heads(v.to(q.dtype), q.shape[1])


def _sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None, scale: float, dropout: float) -> Tensor:
    n_queries, n_keys = q.shape[2], k.shape[2]
    # torch aligns its causal flag to the first key, we align ours to the last: the flag is right only for a square.
    # (Spelled out so that torch.compile sees a plain bool for every length.)
    flag = True if mask.is_only_causal and bias is None and n_queries == n_keys else False  # noqa: SIM210
    added = None
    if not flag:
        added = mask.added if mask.added is not None else AdditiveMask.of(mask, n_queries, n_keys, bias, q)
    kernels = None if added is None or dropout else added.kernels
    if added is not None and added.key_end is not None and kernels and kernels.can_attend(q, k, v, added.numbers):
        return kernels.attend(q, k, v, added.numbers, added.key_end, scale)
    k, v = k.to(q.dtype), v.to(q.dtype)  # a cache may keep shorter ones
    attn_mask = None
    if added is not None:
        attn_mask = (added.numbers if added.seeing is None else added.seeing).to(q.dtype)
    gqa = k.shape[1] != q.shape[1]
    output = F.scaled_dot_product_attention(
        q, k, v, attn_mask=attn_mask, dropout_p=dropout, is_causal=flag, scale=scale, enable_gqa=gqa
    )
    return output if added is None or added.blind is None else output.masked_fill(added.blind, 0.0)


def _flex(q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None, scale: float, dropout: float) -> Tensor:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    if dropout:
        raise ValueError(f"dropout={dropout} with backend='flex', which cannot drop weights: expected 'sdpa' or 'math'")
    batch, n_heads, n_queries, n_keys = q.shape[0], q.shape[1], q.shape[2], k.shape[2]
    allowed = mask.dense(n_queries, n_keys, q.device)
    block_mask = None
    if allowed is not None:
        full = allowed.expand(batch, n_heads, n_queries, n_keys)
        block_mask = create_block_mask(
            lambda b, h, i, j: full[b, h, i, j], batch, n_heads, n_queries, n_keys, device=q.device
        )
    score_mod = None
    if bias is not None:
        added = bias.expand(batch, n_heads, n_queries, n_keys)

        def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return score + added[b, h, i, j]

    output: Tensor = flex_attention(
        q,
        k.to(q.dtype),
        v.to(q.dtype),
        score_mod=score_mod,
        block_mask=block_mask,
        scale=scale,
        enable_gqa=k.shape[1] != n_heads,
    )
    return output


_BACKENDS: dict[str, Callable[[Tensor, Tensor, Tensor, Mask, Tensor | None, float, float], Tensor]] = {
    "sdpa": _sdpa,
    "math": _math,
    "flex": _flex,
}
