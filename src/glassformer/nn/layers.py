"""One layer of a Transformer, and the residual rule around each of its steps."""

from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn

from glassformer.nn.attention import MultiHeadAttention
from glassformer.nn.cache import LayerCache
from glassformer.nn.dropout import Dropout
from glassformer.nn.feedforward import FeedForward
from glassformer.nn.masks import Mask
from glassformer.nn.positions import Rotation

NormPlacement = Literal["pre", "post"]


class Sublayer(nn.Module):
    """The residual rule, written once: post-norm is norm(x + f(x)), pre-norm is x + f(norm(x))."""

    def __init__(self, norm: nn.Module, *, placement: NormPlacement, dropout: float = 0.0):
        super().__init__()
        if placement not in ("pre", "post"):
            raise ValueError(f"norm_placement={placement!r}: expected 'pre' or 'post'")
        self.norm = norm
        self.placement = placement
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, step: Callable[[Tensor], Tensor]) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        if self.placement == "pre":
            return x + self.dropout(step(self.norm(x)))
        return self.norm(x + self.dropout(step(x)))


class Layer(nn.Module):
    """Self-attention, then cross-attention where there is a memory to look at, then the feed-forward network.

    Without `cross_attn` it is the encoder's layer, and the decoder-only model's; with it, the decoder's. `sublayer`
    makes the residual rule around each step.
    """

    def __init__(
        self,
        self_attn: MultiHeadAttention,
        ffn: FeedForward,
        *,
        cross_attn: MultiHeadAttention | None = None,
        sublayer: Callable[[], Sublayer],
    ):
        super().__init__()
        self.self_attn = self_attn
        self.self_attn_sublayer = sublayer()
        self.cross_attn = cross_attn
        self.cross_attn_sublayer = sublayer() if cross_attn is not None else None
        self.ffn = ffn
        self.ffn_sublayer = sublayer()

    def forward(
        self,
        x: Tensor,
        *,
        mask: Mask | None = None,
        bias: Tensor | None = None,
        rotation: Rotation | None = None,
        memory: Tensor | None = None,
        memory_mask: Mask | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """(B, T, C) -> (B, T, C); memory is (B, S, C)."""
        if (memory is None) != (self.cross_attn is None):
            expected = (
                "a memory, for its cross-attention" if memory is None else "none, for there is no cross-attention"
            )
            raise ValueError(f"memory {'is missing' if memory is None else 'was given'}: expected {expected}")
        own, kept = (cache.self_attn, cache.cross_attn) if cache is not None else (None, None)
        x = self.self_attn_sublayer(x, lambda y: self.self_attn(y, mask=mask, bias=bias, rotation=rotation, cache=own))
        if self.cross_attn is not None and self.cross_attn_sublayer is not None:
            x = self.cross_attn_sublayer(
                x,
                lambda y: self.cross_attn(y, memory, mask=memory_mask, cache=kept),
            )
        return self.ffn_sublayer(x, self.ffn)
