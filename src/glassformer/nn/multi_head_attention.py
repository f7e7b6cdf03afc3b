"""Multi-head attention: one class for self-, cross-, causal, cached and grouped-query attention.

Each token compares its query with the keys of the tokens it may see, and gets the mean of their values, weighted by how
well query and key match. H heads do this side by side, each with D of the columns (Vaswani et al. 2017, section 3.2.2):

    head_h = softmax(q_h k_hᵀ / √D) v_h    with q_h, k_h, v_h = x W_Q, x W_K, x W_V, the D columns of head h
    output = Concat(head_1, ..., head_H) W_O

This module projects and splits heads; `attention_backends.py` computes the softmax. Shapes: B batch, T queries, S keys,
C model width, H query heads, G key-value heads, D head size.

    query (B, T, C) ── q_proj ── (B, H, T, D) ─┐
    key   (B, S, C) ── k_proj ── (B, G, S, D) ─┼─ attend ── (B, H, T, D) ── out_proj ── (B, T, C)
    value (B, S, C) ── v_proj ── (B, G, S, D) ─┘
"""

from typing import Literal

import torch
from torch import Tensor, nn

from glassformer.kernels.kernel_set import KernelSet
from glassformer.nn.attention_backends import Attend, Backend
from glassformer.nn.cache import MemorySlot, SelfSlot
from glassformer.nn.disentangled_positions import RelativeVectors, disentangled_bias
from glassformer.nn.masks import Mask, pick
from glassformer.nn.norms import NormKind, make_norm, normalize
from glassformer.nn.positions import Rotation
from glassformer.nn.tensor_checks import check_divides, check_positive, check_width


class MultiHeadAttention(nn.Module):
    """Multi-head attention with four projections: queries, keys, values and output.

    The arguments of `forward` decide the kind of attention: without `key` it is self-attention, a causal mask makes it
    causal, and a cache makes it incremental.

    >>> attention = MultiHeadAttention(d_model=8, n_heads=4, n_kv_heads=2)
    >>> x, memory = torch.zeros(1, 5, 8), torch.zeros(1, 3, 8)
    >>> attention(x, mask=Mask(causal=True)).shape  # causal self-attention
    torch.Size([1, 5, 8])
    >>> attention(x, memory).shape  # cross-attention
    torch.Size([1, 5, 8])

    Args:
        n_kv_heads: Number of key-value heads, each shared by n_heads / n_kv_heads query heads. Fewer than `n_heads` is
            grouped-query attention (Ainslie et al. 2023), 1 is multi-query attention. The default is `n_heads`.
        head_dim: Size of one head. The default is d_model / n_heads.
        key_bias: Whether the key projection has a bias, if those of queries and values have one (`qkv_bias`).
        relative_proj: Whether vectors of relative positions have their own projections; otherwise they use those of
            queries and keys.
        qk_norm: Kind of norm, one of those in `norms.py`, that is applied to each head's queries and keys before q kᵀ
            is computed. None applies no norm.
        qk_norm_over: Whether these norms are over each head, or over all heads at once, as in OLMo 2.
        clip_qkv: Bound of the absolute value of queries, keys and values, as they are projected. The default is none.
        scale: Factor that multiplies q kᵀ. The default is 1/√head_dim.
        softcap: Bound of the scores, as in Gemma 2 (see `attend`). The default is none.
        dropout: Probability of dropping an attention weight in training.
        backend: Implementation of the attention; see `attend`.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        n_kv_heads: int | None = None,
        head_dim: int | None = None,
        qkv_bias: bool = True,
        key_bias: bool = True,
        relative_proj: bool = False,
        out_bias: bool = True,
        qk_norm: NormKind | None = None,
        norm_eps: float = 1e-6,
        norm_bias: bool = True,
        norm_weight: bool = True,
        qk_norm_over: Literal["head", "all_heads"] = "head",
        clip_qkv: float | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        dropout: float = 0.0,
        backend: Backend = "sdpa",
    ):
        super().__init__()
        check_positive("d_model", d_model)
        check_positive("n_heads", n_heads)
        if head_dim is None:
            check_divides("n_heads", n_heads, "d_model", d_model)
            head_dim = d_model // n_heads
        check_positive("head_dim", head_dim)
        n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
        check_positive("n_kv_heads", n_kv_heads)
        check_divides("n_kv_heads", n_kv_heads, "n_heads", n_heads)
        self.d_model, self.n_heads, self.n_kv_heads, self.head_dim = d_model, n_heads, n_kv_heads, head_dim

        self.q_proj = nn.Linear(d_model, n_heads * head_dim, bias=qkv_bias)
        self.k_proj = nn.Linear(d_model, n_kv_heads * head_dim, bias=qkv_bias and key_bias)
        self.v_proj = nn.Linear(d_model, n_kv_heads * head_dim, bias=qkv_bias)
        self.out_proj = nn.Linear(n_heads * head_dim, d_model, bias=out_bias)
        self.relative_q_proj = nn.Linear(d_model, n_heads * head_dim, bias=qkv_bias) if relative_proj else None
        has_key_bias = qkv_bias and key_bias
        self.relative_k_proj = nn.Linear(d_model, n_heads * head_dim, bias=has_key_bias) if relative_proj else None
        self.qkv_proj: nn.Module | None = None
        """The three input projections fused into one; set only in packed models (`runtime/packed_model.py`)."""
        self.kv_proj: nn.Module | None = None
        """The projections of keys and values fused into one; set only in copies of models for training."""
        self.norms_all_heads = qk_norm is not None and qk_norm_over == "all_heads"
        self.clip_qkv = clip_qkv

        def make_qk_norm(n_heads: int) -> nn.Module | None:
            width = head_dim * n_heads if self.norms_all_heads else head_dim
            return make_norm(qk_norm, width, norm_eps, bias=norm_bias, weight=norm_weight) if qk_norm else None

        self.q_norm, self.k_norm = make_qk_norm(n_heads), make_qk_norm(n_kv_heads)
        scale = head_dim**-0.5 if scale is None else scale
        self.attend = Attend(scale=scale, softcap=softcap, dropout=dropout, backend=backend)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        mask: Mask | None = None,
        bias: Tensor | None = None,
        rotation: Rotation | None = None,
        cache: SelfSlot | MemorySlot | None = None,
        relative: RelativeVectors | None = None,
        wanted: Tensor | None = None,
    ) -> Tensor:
        """Attend from `query` (B, T, C) to `key` and `value` (B, S, C) and return (B, T, C).

        Args:
            key: The default is `query`: self-attention.
            value: The default is `key`.
            mask: Which keys each query may attend to. The default is all.
            bias: Added to the scores, broadcast to (B, H, T, S).
            rotation: Rotary position embedding of the new queries and keys.
            cache: Keys and values of earlier calls. New ones are appended to it.
            relative: Vectors of relative positions, for disentangled self-attention: their products with queries and
                keys are added to the scores. It needs as many key-value heads as heads.
            wanted: (B,), the place of the only token of each sequence whose output is wanted, as (B, 1, C). All keys
                and values are written to the cache. `mask` and `bias` are those of these queries.

        The hypotheses of a beam search share the encoder output of their sentence, so a cache may hold fewer encoder
        outputs than `query` has sequences; see `KVCache.memory_rows`.
        """
        q, k, v = self.project(query, key, value, rotation=rotation, cache=cache)  # (B, H, T, D), 2 x (B, G, S, D)
        if relative is not None:
            table_q, table_k = self._project_vectors(relative.table)  # (H, 2N, D) each
            bias = disentangled_bias(q, k, table_q, table_k, relative.rows) * self.attend.scale
        if wanted is not None:
            q = pick(q.transpose(1, 2), wanted).transpose(1, 2)  # (B, H, 1, D)
        return self.merge(self.attend_to_shared(q, k, v, mask=mask, bias=bias))

    def attend_to_shared(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Mask | None, bias: Tensor | None = None
    ) -> Tensor:
        """Attend from queries to keys and values, of which several neighboring sequences may share one set.

        (R·B, H, T, D) and 2 x (B, G, S, D) -> (R·B, H, T, D). Sequences that share keys become more queries of one.
        """
        n_rows, n_memories = q.shape[0], k.shape[0]
        if n_memories == n_rows:
            return self.attend(q, k, v, mask=mask, bias=bias)
        return unfold_rows(self.attend(fold_rows(q, n_memories), k, v, mask=mask, bias=bias), n_rows)

    def project(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        rotation: Rotation | None = None,
        cache: SelfSlot | MemorySlot | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries (B, H, T, D) and all keys and values (B, G, S, D), including those in the cache.

        The arguments are those of `forward`. New keys and values are written to the cache.
        """
        key = query if key is None else key
        value = key if value is None else value
        for name, x in (("query", query), ("key", key), ("value", value)):
            check_width(name, x, self.d_model)
        kernels = None if cache is None else cache.cache.kernels
        if cache is not None and cache.is_complete:  # cross-attention after the first step
            return (self.split_queries(self.q_proj(query), rotation=rotation, kernels=kernels), *cache.read())
        if self.qkv_proj is not None and key is query and value is query:
            q, k, v = self.split(self.qkv_proj(query), rotation=rotation, kernels=kernels)
        else:
            q = self.split_queries(self.q_proj(query), rotation=rotation, kernels=kernels)  # (B, H, T, D)
            k, v = self._project_keys(key, value, rotation, kernels)
        return (q, k, v) if cache is None else (q, *cache.update(k, v))

    def store_memory(self, memory: Tensor, slot: MemorySlot) -> None:
        """Store the keys and values of the encoder's output (B, S, C) in the cache, as `forward` does first."""
        slot.update(*self._project_keys(memory, memory, None, slot.cache.kernels))

    def _project_keys(
        self, key: Tensor, value: Tensor, rotation: Rotation | None, kernels: KernelSet | None
    ) -> tuple[Tensor, Tensor]:
        """Return the keys and values (B, G, S, D) of `key` and `value` (B, S, C)."""
        if self.kv_proj is not None and value is key:
            keys, values = self.kv_proj(key).chunk(2, -1)
        else:
            keys, values = self.k_proj(key), self.v_proj(value)
        k = self._prepare(keys, self.n_kv_heads, self.k_norm, rotation, kernels)
        return k, split_heads(self._clip(values), self.n_kv_heads)

    def split_queries(self, projected: Tensor, *, rotation: Rotation | None, kernels: KernelSet | None) -> Tensor:
        """Split the output of `q_proj` into queries (B, H, T, D), normalized and rotated."""
        return self._prepare(projected, self.n_heads, self.q_norm, rotation, kernels)

    def split(
        self, joined: Tensor, *, rotation: Rotation | None, kernels: KernelSet | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Split the output of `qkv_proj` into queries (B, H, T, D), keys and values (B, G, T, D).

        Queries and keys are normalized and rotated. Without norms they are rotated together, which takes fewer
        operations. Without rotation all three are split at once, because their gradients are then joined at once.
        """
        heads, groups, width = self.n_heads, self.n_kv_heads, self.head_dim
        if self.q_norm is None and self.k_norm is None and rotation is not None:
            both, v = torch.split(joined, [(heads + groups) * width, groups * width], -1)
            q, k = torch.split(self._prepare(both, heads + groups, None, rotation, kernels), [heads, groups], 1)
        else:
            q, k, v = torch.split(joined, [heads * width, groups * width, groups * width], -1)
            q = self.split_queries(q, rotation=rotation, kernels=kernels)
            k = self._prepare(k, groups, self.k_norm, rotation, kernels)
        return q, k, split_heads(self._clip(v), groups)

    def _project_vectors(self, table: Tensor) -> tuple[Tensor, Tensor]:
        """Return the query and key projections of vectors (N, C), split into heads: two of (H, N, D)."""
        if self.relative_q_proj is not None and self.relative_k_proj is not None:
            q, k = self.relative_q_proj(table), self.relative_k_proj(table)
        elif self.qkv_proj is not None:
            width = self.n_heads * self.head_dim
            q, k, _ = self.qkv_proj(table).split([width, width, width], -1)
        else:
            q, k = self.q_proj(table), self.k_proj(table)
        return split_heads(q[None], self.n_heads)[0], split_heads(k[None], self.n_heads)[0]

    def merge(self, mixed: Tensor) -> Tensor:
        """Concatenate the heads and apply the output projection: (B, H, T, D) -> (B, T, C)."""
        return self.out_proj(merge_heads(mixed))

    def _prepare(
        self,
        x: Tensor,
        n_heads: int,
        norm: nn.Module | None,
        rotation: Rotation | None,
        kernels: KernelSet | None,
    ) -> Tensor:
        """Split projected queries or keys into heads, then apply `norm` and `rotation` where they are given."""
        x = self._clip(x)
        if norm is not None and self.norms_all_heads:
            x = normalize(norm, x, kernels)  # (B, T, H·D)
        x = split_heads(x, n_heads)  # (B, H, T, D)
        if norm is not None and not self.norms_all_heads:
            x = normalize(norm, x, kernels)
        return x if rotation is None else rotation.rotate(x, kernels)

    def _clip(self, x: Tensor) -> Tensor:
        return x if self.clip_qkv is None else x.clamp(-self.clip_qkv, self.clip_qkv)


def split_heads(x: Tensor, n_heads: int) -> Tensor:
    """Split the last dimension into heads: (B, T, H·D) -> (B, H, T, D)."""
    return x.view(*x.shape[:-1], n_heads, x.shape[-1] // n_heads).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """Concatenate the heads: (B, H, T, D) -> (B, T, H·D)."""
    return x.transpose(1, 2).flatten(2)


def fold_rows(x: Tensor, n_rows: int) -> Tensor:
    """Merge each group of R neighboring sequences into one with R times as many queries.

    (R·B, H, T, D) -> (B, H, R·T, D), where `n_rows` is B. The sequences of a group attend to the same keys.
    """
    _, heads, length, width = x.shape
    return x.view(n_rows, -1, heads, length, width).transpose(1, 2).reshape(n_rows, heads, -1, width)


def unfold_rows(x: Tensor, n_rows: int) -> Tensor:
    """Undo `fold_rows`: (B, H, R·T, D) -> (R·B, H, T, D), where `n_rows` is R·B."""
    batch, heads, _, width = x.shape
    return x.view(batch, heads, n_rows // batch, -1, width).transpose(1, 2).reshape(n_rows, heads, -1, width)
