"""One Transformer layer: self-attention, cross-attention, feed-forward, each inside a residual connection.

Attention moves information between tokens; the feed-forward network then works on each token alone. Each adds its
result to its input (a residual connection), so that gradients reach the first layer of a deep stack. With pre-norm a
layer is:

    x = x + self_attn(norm(x))
    x = x + cross_attn(norm(x), memory)    # only in the decoder of an encoder-decoder
    x = x + ffn(norm(x))

Some decoders compute attention and feed-forward side by side: x = x + self_attn(norm(x)) + ffn(norm(x)).

`memory` is the encoder's output. Shapes: B batch, T tokens, S tokens of the encoder's output, C model width.
"""

from collections.abc import Callable
from typing import Any, Literal

from torch import Tensor, nn

from glassformer.kernels.kernel_set import KernelSet
from glassformer.nn.cache import LayerCache
from glassformer.nn.disentangled_positions import RelativeVectors
from glassformer.nn.dropout import Dropout
from glassformer.nn.expert_feedforward import ExpertFeedForward
from glassformer.nn.feedforward import FeedForward
from glassformer.nn.fused_layer import LayerParts, can_fuse, fused_layer, must_be_called
from glassformer.nn.masks import Mask, pick
from glassformer.nn.multi_head_attention import MultiHeadAttention
from glassformer.nn.norms import normalize
from glassformer.nn.positions import Rotation

NormPlacement = Literal["pre", "post", "sandwich", "output"]
Parallel = Literal["none", "two_norms", "one_norm"]


class Sublayer(nn.Module):
    """A residual connection with normalization and dropout around a function f.

    With `placement="post"` it is norm(x + f(x)), as in Vaswani et al. (2017). With "pre" it is x + f(norm(x)), as in
    GPT-2 and most later models. Pre-norm models can be trained without warmup, because no norm lies between the
    residual sums (Xiong et al. 2020). With "output" it is x + norm(f(x)), as in OLMo 2, and with "sandwich"
    x + post_norm(f(norm(x))), as in Gemma 2. `multiplier` is a factor on f's output.
    """

    takes_kernels = True
    """Whether `forward` has the parameter `kernels`. Classes with the signature of a document have none."""

    def __init__(
        self,
        norm: nn.Module,
        *,
        placement: NormPlacement,
        post_norm: nn.Module | None = None,
        dropout: float = 0.0,
        multiplier: float = 1.0,
    ):
        super().__init__()
        if placement not in ("pre", "post", "sandwich", "output"):
            raise ValueError(f"norm_placement={placement!r}: expected 'pre', 'post', 'sandwich' or 'output'")
        if (post_norm is not None) != (placement == "sandwich"):
            raise ValueError(f"post_norm with norm_placement={placement!r}: expected it with 'sandwich' only")
        self.norm = norm
        self.post_norm = post_norm
        self.placement = placement
        self.multiplier = multiplier
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, f: Callable[[Tensor], Tensor], kernels: KernelSet | None = None) -> Tensor:
        """Apply the function f to x (B, T, C) inside the residual connection and return the same shape.

        `kernels` may compute the norm; None is plain torch.
        """
        y = f(self.input_of(x, kernels))
        if self.post_norm is not None:
            return x + self.branch(normalize(self.post_norm, y, kernels))
        if self.placement == "output":
            return x + self.branch(normalize(self.norm, y, kernels))
        if self.placement == "pre":
            return x + self.branch(y)
        return normalize(self.norm, x + self.branch(y), kernels)

    def input_of(self, x: Tensor, kernels: KernelSet | None = None) -> Tensor:
        """Return what f is applied to: the norm of x, or x itself where the norm comes after f."""
        return normalize(self.norm, x, kernels) if self.placement in ("pre", "sandwich") else x

    def branch(self, y: Tensor) -> Tensor:
        """Return what is added to x, given y, the output of f: y with dropout and the multiplier."""
        y = self.dropout(y)
        return y if self.multiplier == 1.0 else y * self.multiplier


class Layer(nn.Module):
    """A Transformer layer: self-attention, then cross-attention if the layer has one, then the feed-forward network.

    Encoders and decoder-only models have no cross-attention; the decoder of an encoder-decoder has it. Whether a layer
    is causal depends on the mask passed to `forward`.

    >>> layer = Layer(
    ...     MultiHeadAttention(8, n_heads=2),
    ...     FeedForward(8, 32),
    ...     sublayer=lambda: Sublayer(nn.LayerNorm(8), placement="pre"),
    ... )
    >>> layer(torch.zeros(1, 5, 8), mask=Mask(causal=True)).shape
    torch.Size([1, 5, 8])

    Args:
        sublayer: Function that returns a new residual connection, called once for each of the layer's parts.
        parallel: Whether the feed-forward network gets the layer's input instead of the output of attention, as in
            GPT-NeoX ("two_norms") and GPT-J ("one_norm": both parts share one norm). It needs pre-norm.
    """

    def __init__(
        self,
        self_attn: MultiHeadAttention,
        ffn: FeedForward | ExpertFeedForward,
        *,
        cross_attn: MultiHeadAttention | None = None,
        sublayer: Callable[[], Sublayer],
        parallel: Parallel = "none",
    ):
        super().__init__()
        self.parallel: Parallel = parallel
        self.self_attn = self_attn
        self.self_attn_sublayer = sublayer()
        self.cross_attn = cross_attn
        self.cross_attn_sublayer = sublayer() if cross_attn is not None else None
        self.ffn = ffn
        self.ffn_sublayer = sublayer()
        if parallel == "one_norm":
            self.ffn_sublayer.norm = nn.Identity()

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
        relative: RelativeVectors | None = None,
        wanted: Tensor | None = None,
    ) -> Tensor:
        """Apply the layer to x (B, T, C) and return the same shape.

        Args:
            mask: Which tokens of x, and of the cache, each token may attend to.
            bias: Added to the self-attention scores, broadcast to (B, H, T, S).
            rotation: Rotary position embedding of the tokens of x.
            memory: Output of the encoder, (B, S, C), for cross-attention.
            memory_mask: Which tokens of the encoder's output may be attended to.
            cache: Keys and values of earlier calls.
            relative: Vectors of relative positions, for disentangled self-attention.
            wanted: (B,), the place of the only token of each sequence whose output is wanted, as (B, 1, C). Of the
                others only keys and values are computed, for `cache`. `mask` and `bias` are those of these tokens. It
                needs `can_pick`.
        """
        self._check_memory(memory)
        self_cache, cross_cache = (None, None) if cache is None else (cache.self_attn, cache.cross_attn)
        kernels = None if cache is None else cache.kernels
        if cache is not None and relative is None and wanted is None and cache.kernels.can_fuse_linear(x):
            parts = self._fusible_parts()
            if parts is not None and can_fuse(parts, x, cache):
                return fused_layer(parts, x, mask=mask, bias=bias, rotation=rotation, cache=cache)

        tokens = x  # all of them; x is the wanted ones
        if wanted is not None:
            x = pick(tokens, wanted)

        def self_attn(y: Tensor) -> Tensor:
            more: dict[str, Any] = {} if relative is None else {"relative": relative}
            if wanted is not None:
                y, more["wanted"] = self.self_attn_sublayer.input_of(tokens, kernels), wanted
            return self.self_attn(y, mask=mask, bias=bias, rotation=rotation, cache=self_cache, **more)

        def cross_attn(y: Tensor) -> Tensor:
            assert self.cross_attn is not None
            return self.cross_attn(y, memory, mask=memory_mask, cache=cross_cache)

        def ffn(y: Tensor) -> Tensor:
            if isinstance(self.ffn, ExpertFeedForward):
                return self.ffn(y, has_fixed_shapes=cache is not None and cache.has_fixed_shapes)
            return self.ffn(y, kernels) if self.ffn.takes_kernels else self.ffn(y)

        def add(sublayer: Sublayer, y: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
            found: Tensor = sublayer(y, f, kernels) if sublayer.takes_kernels else sublayer(y, f)
            return found

        if self.parallel != "none":
            y = normalize(self.self_attn_sublayer.norm, x, kernels)
            z = y if self.parallel == "one_norm" else normalize(self.ffn_sublayer.norm, x, kernels)
            return x + self.self_attn_sublayer.branch(self_attn(y)) + self.ffn_sublayer.branch(ffn(z))
        x = add(self.self_attn_sublayer, x, self_attn)
        if self.cross_attn_sublayer is not None:
            x = add(self.cross_attn_sublayer, x, cross_attn)
        return add(self.ffn_sublayer, x, ffn)

    def can_pick(self) -> bool:
        """Return whether `forward` takes `wanted`, without `relative`: not with hooks, which would see fewer tokens."""
        is_own = type(self) is Layer and type(self.self_attn) is MultiHeadAttention
        return is_own and type(self.self_attn_sublayer) is Sublayer and not must_be_called(self)

    def _fusible_parts(self) -> LayerParts | None:
        """Return the parts that `fused_layer` computes.

        None for a parallel layer, post-norm, a multiplier, dropout, hooks, cross-attention or experts.
        """
        if isinstance(self.ffn, ExpertFeedForward):
            return None
        sublayers = self.self_attn_sublayer, self.ffn_sublayer
        is_pre = all(sublayer.takes_kernels and sublayer.placement == "pre" for sublayer in sublayers)
        is_changed = any(sublayer.multiplier != 1.0 or must_be_called(sublayer) for sublayer in sublayers)
        if not is_pre or is_changed or self.cross_attn is not None or self.parallel != "none":
            return None
        return LayerParts(self.self_attn_sublayer.norm, self.self_attn, self.ffn_sublayer.norm, self.ffn)

    def _check_memory(self, memory: Tensor | None) -> None:
        if memory is None and self.cross_attn is not None:
            raise ValueError("memory is missing: expected the encoder's output, because the layer has cross-attention")
        if memory is not None and self.cross_attn is None:
            raise ValueError("memory was given: expected none, because the layer has no cross-attention")
