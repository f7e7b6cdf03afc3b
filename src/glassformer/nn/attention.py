"""Multi-head attention: one class for self, cross, causal, cached and grouped use."""

from torch import Tensor, nn

from glassformer.nn.attend import Attend, Backend
from glassformer.nn.cache import MemorySlot, SelfSlot
from glassformer.nn.masks import Mask
from glassformer.nn.norms import NormKind, make_norm
from glassformer.nn.positions import Rotation
from glassformer.nn.tensor_checks import check_divides, check_positive, check_width


class MultiHeadAttention(nn.Module):
    """Concat(head_1 ... head_H) W_O, each head attending in its own projection (Vaswani et al. 2017, section 3.2.2).

    Fewer key-value heads than heads make it grouped-query attention, one makes it multi-query. `qk_norm` normalises
    queries and keys over the head before they meet. `scale` is 1/√head_dim unless given.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        n_kv_heads: int | None = None,
        head_dim: int | None = None,
        qkv_bias: bool = True,
        out_bias: bool = True,
        qk_norm: NormKind | None = None,
        norm_eps: float = 1e-6,
        scale: float | None = None,
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
        self.k_proj = nn.Linear(d_model, n_kv_heads * head_dim, bias=qkv_bias)
        self.v_proj = nn.Linear(d_model, n_kv_heads * head_dim, bias=qkv_bias)
        self.out_proj = nn.Linear(n_heads * head_dim, d_model, bias=out_bias)
        self.qkv_proj: nn.Module | None = None
        """All three side by side, where a model was packed for writing (`runtime/packed.py`)."""
        self.q_norm = make_norm(qk_norm, head_dim, norm_eps) if qk_norm else None
        self.k_norm = make_norm(qk_norm, head_dim, norm_eps) if qk_norm else None
        self.attend = Attend(scale=head_dim**-0.5 if scale is None else scale, dropout=dropout, backend=backend)

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
    ) -> Tensor:
        """query (B, T, C), key and value (B, S, C) -> (B, T, C). Key defaults to the query, value to the key."""
        q, k, v = self.project(query, key, value, rotation=rotation, cache=cache)
        if k.shape[0] < q.shape[0]:  # rows that share a memory look at it together, as so many queries
            shared = self.attend(fold_rows(q, k.shape[0]), k, v, mask=mask, bias=bias)
            return self.join(unfold_rows(shared, q.shape[0]))
        return self.join(self.attend(q, k, v, mask=mask, bias=bias))

    def project(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        rotation: Rotation | None = None,
        cache: SelfSlot | MemorySlot | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, H, T, D), keys and values (B, G, S, D): all that the cache holds by now, where there is one."""
        key = query if key is None else key
        value = key if value is None else value
        for name, x in (("query", query), ("key", key), ("value", value)):
            check_width(name, x, self.d_model)
        is_known = cache is not None and cache.is_complete
        if self.qkv_proj is not None and key is query and value is query:
            widths = [heads * self.head_dim for heads in (self.n_heads, self.n_kv_heads, self.n_kv_heads)]
            flat_q, *flat = self.qkv_proj(query).split(widths, -1)
        else:
            flat_q, flat = self.q_proj(query), [] if is_known else [self.k_proj(key), self.v_proj(value)]
        q = split_heads(flat_q, self.n_heads)
        if self.q_norm is not None:
            q = self.q_norm(q)
        if rotation is not None:
            q = rotation.turn(q)
        if cache is not None and is_known:
            return (q, *cache.read())
        k, v = (split_heads(x, self.n_kv_heads) for x in flat)
        if self.k_norm is not None:
            k = self.k_norm(k)
        if rotation is not None:
            k = rotation.turn(k)
        return (q, k, v) if cache is None else (q, *cache.update(k, v))

    def join(self, mixed: Tensor) -> Tensor:
        """The heads side by side, projected back: (B, H, T, D) -> (B, T, C)."""
        return self.out_proj(merge_heads(mixed))


def split_heads(x: Tensor, n_heads: int) -> Tensor:
    """(B, T, H·D) -> (B, H, T, D)."""
    return x.view(*x.shape[:-1], n_heads, x.shape[-1] // n_heads).transpose(1, 2)


def fold_rows(x: Tensor, n_rows: int) -> Tensor:
    """Neighbouring rows as more queries of one: (R·B, H, T, D) -> (B, H, R·T, D)."""
    _, heads, length, width = x.shape
    return x.view(n_rows, -1, heads, length, width).transpose(1, 2).reshape(n_rows, heads, -1, width)


def unfold_rows(x: Tensor, n_rows: int) -> Tensor:
    """`fold_rows` undone: (B, H, R·T, D) -> (R·B, H, T, D)."""
    batch, heads, _, width = x.shape
    return x.view(batch, heads, n_rows // batch, -1, width).transpose(1, 2).reshape(n_rows, heads, -1, width)


def merge_heads(x: Tensor) -> Tensor:
    """(B, H, T, D) -> (B, T, H·D)."""
    return x.transpose(1, 2).flatten(2)
