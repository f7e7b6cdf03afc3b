"""Scaled dot-product attention, softmax(q kᵀ · scale + bias) v: the only torch code that turns scores into weights.

With a soft cap c, as in Gemma 2, the scores are c · tanh(q kᵀ · scale / c) + bias. No fused kernel has that: `sdpa`
then computes as `math` does.

Three backends compute the same function, up to rounding, with every mask:

- `math` is the formula, line by line. Read this one first.
- `sdpa` is torch's fused kernel, or one of ours (`kernels/`) for the few queries of a decoding step. It agrees with
  `math` in training too: gradients and dropout.
- `flex` is torch's flex attention. Inside `torch.compile` it becomes a kernel that skips masked blocks; outside it is
  slow. It refuses dropout with an error, and on a CPU torch has no backward pass for it.

Shapes: B batch, H query heads, G key-value heads, T queries, S keys, D head size.

To add a backend, write a function with the signature of `_math`, and list it in `_BACKENDS` and `Backend`. With
dropout and the same seed, `math` and `sdpa` drop the same weights on a CPU, but perhaps different ones on a GPU. A
query that may attend to no key gets zeros and zero gradients.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from glassformer.kernels.kernel_set import KernelSet
from glassformer.nn import masks
from glassformer.nn.masks import AdditiveMask, Mask
from glassformer.nn.tensor_checks import check_broadcasts, check_divides, check_probability

Backend = Literal["sdpa", "math", "flex"]


class Attended(NamedTuple):
    """Result of `attend`: the weighted sum of the values, and the weights if `need_weights` was set."""

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
    softcap: float | None = None,
    dropout: float = 0.0,
    need_weights: bool = False,
    backend: Backend = "sdpa",
) -> Attended:
    """Compute scaled dot-product attention (Vaswani et al. 2017, equation 1).

    The example has two tokens, one head of size 1 and a causal mask. The first token attends only to itself. The
    second attends to both: its scores are 0 and log 3, so its weights are 1/4 and 3/4, and its output is
    1/4 · 4 + 3/4 · 8 = 7.

    >>> q, k = torch.tensor([[[[1.0], [1.0]]]]), torch.tensor([[[[0.0], [math.log(3)]]]])
    >>> v = torch.tensor([[[[4.0], [8.0]]]])
    >>> found = attend(q, k, v, mask=Mask(causal=True), need_weights=True)
    >>> found.weights.round(decimals=2).tolist()
    [[[[1.0, 0.0], [0.25, 0.75]]]]
    >>> found.output.round(decimals=2).tolist()
    [[[[4.0], [7.0]]]]

    Args:
        q: Queries, (B, H, T, D).
        k: Keys, (B, G, S, D). G divides H: each key-value head serves H/G query heads.
        v: Values, (B, G, S, D).
        mask: Which keys each query may attend to. The default is all.
        bias: Added to the scores, broadcast to (B, H, T, S). Must be finite; use `mask` to exclude keys.
        scale: Factor that multiplies q kᵀ. The default is 1/√D.
        softcap: Bound of the scores before `bias` is added. The default is none.
        dropout: Probability of dropping a weight. Pass 0 outside training.
        need_weights: Also return the weights, as they are before dropout. The output does not depend on this flag.
        backend: "sdpa", "math" or "flex"; see the module's docstring.
    """
    mask = Mask() if mask is None else mask
    _check(q, k, v, mask, bias, dropout, backend)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    used = "math" if softcap is not None and backend == "sdpa" else backend
    output = _BACKENDS[used](q, k, v, mask, bias, scale, softcap, dropout)
    weights = attention_weights(q, k, mask=mask, bias=bias, scale=scale, softcap=softcap) if need_weights else None
    return Attended(output, weights)


def attention_weights(
    q: Tensor, k: Tensor, *, mask: Mask, bias: Tensor | None, scale: float, softcap: float | None = None
) -> Tensor:
    """Return the attention weights (B, H, T, S). A query's weights sum to 1, or to 0 if it may attend to no key."""
    allowed = mask.dense(q.shape[2], k.shape[2], q.device)
    return masked_softmax(q, k, allowed, bias, scale, softcap)


def masked_softmax(
    q: Tensor, k: Tensor, allowed: Tensor | None, bias: Tensor | None, scale: float, softcap: float | None = None
) -> Tensor:
    """Return the attention weights (B, H, T, S): the softmax of q kᵀ · scale + bias over the allowed keys.

    `allowed` is a boolean tensor that broadcasts to (B, H, T, S); None allows every key. Half-precision queries are
    computed in float32. The result has the dtype of q.
    """
    dtype = q.dtype
    if dtype in (torch.float16, torch.bfloat16):
        q = q.float()  # the product of two numbers above 256 overflows float16
    k = k.to(q.dtype)  # a cache may store keys in a narrower dtype
    scores = (q * scale) @ _repeat_heads(k, q.shape[1]).transpose(-2, -1)  # (B, H, T, S)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    if allowed is None:
        return scores.softmax(-1).to(dtype)
    # The lowest finite number instead of -inf: the softmax of a row of -inf is 0/0 = NaN.
    scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
    return scores.softmax(-1).masked_fill(~allowed, 0.0).to(dtype)


class Attend(nn.Module):
    """`attend` as a module without parameters, so that forward hooks can read q, k, mask and bias."""

    def __init__(self, *, scale: float, softcap: float | None = None, dropout: float = 0.0, backend: Backend = "sdpa"):
        super().__init__()
        check_probability("attention dropout", dropout)
        check_backend(backend)
        self.scale = scale
        self.softcap = softcap
        self.dropout = dropout
        self.backend: Backend = backend

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, mask: Mask | None, bias: Tensor | None) -> Tensor:
        """Return `attend(...).output`, (B, H, T, D), with dropout in training only."""
        dropout = self.dropout if self.training else 0.0
        options = {"scale": self.scale, "softcap": self.softcap, "dropout": dropout}
        return attend(q, k, v, mask=mask, bias=bias, backend=self.backend, **options).output  # type: ignore[arg-type]

    @override
    def extra_repr(self) -> str:
        return f"scale={self.scale:.4g}, dropout={self.dropout}, backend={self.backend}"


def reads_unfilled(model: nn.Module, keys: Tensor, kernels: KernelSet) -> bool:
    """Return whether a decoding step of the model reads the whole capacity of its cache, not only the filled part.

    If so, the caller must clear a cache before using it for another text. `keys` is one layer's cached keys,
    (B, G, capacity, D); `kernels` are the kernels that the step uses.
    """
    is_fused = all(
        module.backend == "sdpa" and module.softcap is None for module in model.modules() if isinstance(module, Attend)
    )
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
    """Raise ValueError unless `backend` is the name of an attention backend."""
    if backend not in _BACKENDS:
        raise ValueError(f"backend={backend!r}: expected one of {', '.join(_BACKENDS)}")


def _repeat_heads(x: Tensor, n_heads: int) -> Tensor:
    """Repeat each key-value head for the query heads that share it: (B, G, S, D) -> (B, H, S, D)."""
    group_size = n_heads // x.shape[1]
    return x if group_size == 1 else x.repeat_interleave(group_size, dim=1)  # (B, H, S, D)


def _math(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    bias: Tensor | None,
    scale: float,
    softcap: float | None,
    dropout: float,
) -> Tensor:
    weights = attention_weights(q, k, mask=mask, bias=bias, scale=scale, softcap=softcap)
    return F.dropout(weights, dropout) @ _repeat_heads(v.to(q.dtype), q.shape[1])


def _sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    bias: Tensor | None,
    scale: float,
    softcap: None,
    dropout: float,
) -> Tensor:
    n_queries, n_keys = q.shape[2], k.shape[2]
    if mask.by_blocks and bias is None and not dropout:
        return _sdpa_by_blocks(q, k, v, mask, scale)
    # torch's is_causal aligns query 0 with key 0; here the last query stands at the last key. The two agree only if
    # there are as many queries as keys. (Written so that torch.compile sees a plain bool for every length.)
    is_causal = True if mask.is_only_causal and bias is None and n_queries == n_keys else False  # noqa: SIM210
    additive = None
    if not is_causal:
        additive = mask.additive if mask.additive is not None else AdditiveMask.of(mask, n_queries, n_keys, bias, q)
    if additive is not None and additive.key_end is not None and not dropout:
        kernels = additive.kernels
        if kernels is not None and kernels.can_attend(q, k, v, additive.values):
            return kernels.attend(q, k, v, additive.values, additive.key_end, scale)
    k, v = k.to(q.dtype), v.to(q.dtype)  # a cache may store them in a narrower dtype
    output = F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=None if additive is None else additive.safe_values.to(q.dtype),
        dropout_p=dropout,
        is_causal=is_causal,
        scale=scale,
        enable_gqa=k.shape[1] != q.shape[1],
    )
    if additive is None or additive.fully_masked is None:
        return output
    if output.requires_grad:
        return output.masked_fill(additive.fully_masked, 0.0)
    return output.masked_fill_(additive.fully_masked, 0.0)  # in place: no copy, and no other order in memory


def _sdpa_by_blocks(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float) -> Tensor:
    """Compute attention with a window for blocks of queries, each with the keys in its reach."""
    n_queries, n_keys = q.shape[2], k.shape[2]
    parts = []
    for first in range(0, n_queries, masks.QUERY_BLOCK):
        last = min(first + masks.QUERY_BLOCK, n_queries)
        part, keys = mask.block(first, last, n_queries, n_keys, q.device)
        parts.append(_sdpa(q[:, :, first:last], k[:, :, keys], v[:, :, keys], part, None, scale, None, 0.0))
    return torch.cat(parts, 2)  # (B, H, T, D)


def _flex(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    bias: Tensor | None,
    scale: float,
    softcap: float | None,
    dropout: float,
) -> Tensor:
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
    if bias is not None or softcap is not None:
        full_bias = None if bias is None else bias.expand(batch, n_heads, n_queries, n_keys)

        def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            score = score if softcap is None else softcap * torch.tanh(score / softcap)
            return score if full_bias is None else score + full_bias[b, h, i, j]

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


_BACKENDS: dict[str, Callable[..., Tensor]] = {
    "sdpa": _sdpa,
    "math": _math,
    "flex": _flex,
}
