"""A stack of layers: an encoder or a decoder."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from glassformer.kernels.kernel_set import KernelSet
from glassformer.nn.cache import KVCache
from glassformer.nn.disentangled_positions import DisentangledPositions
from glassformer.nn.fused_layer import must_be_called
from glassformer.nn.fused_stack import can_fuse_stack, fused_stack
from glassformer.nn.layer_inputs import LayerInputs, LayerKinds, SharedInputs
from glassformer.nn.layers import Layer
from glassformer.nn.masks import Mask, pick
from glassformer.nn.norms import normalize
from glassformer.nn.positions import Alibi, RelativeBias, Rotary
from glassformer.nn.tensor_checks import check_probability


class Stack(nn.Module):
    """Layers applied in order, then an optional final norm.

    The rotary angles, the score bias and the additive mask are the same in every layer of a kind, so they are computed
    once per forward pass (`LayerInputs`).

    Args:
        layers: The layers, or a single one that is applied `depth` times (shared weights, as in ALBERT).
        depth: Number of layer applications. The default is the number of layers.
        norm: Final norm of pre-norm models.
        rotary: Rotary positions of self-attention.
        score_bias: Position bias that is added to the self-attention scores, or a list with one for each layer.
        layer_drop: Probability of skipping a layer in training (Fan et al. 2020).
        relative: Relative positions of disentangled attention, as in DeBERTa.
        kinds: Layers that differ in attention: some may ignore the window of the mask, or rotary positions.
        local_rotary: Rotary positions of the layers that do not ignore the window; None is `rotary`.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        *,
        depth: int | None = None,
        norm: nn.Module | None = None,
        rotary: Rotary | None = None,
        score_bias: RelativeBias | Alibi | nn.ModuleList | None = None,
        layer_drop: float = 0.0,
        relative: DisentangledPositions | None = None,
        kinds: LayerKinds | None = None,
        local_rotary: Rotary | None = None,
    ):
        super().__init__()
        check_probability("layer_drop", layer_drop)
        self.layers = nn.ModuleList(layers)
        self.depth = len(layers) if depth is None else depth
        if len(layers) not in (1, self.depth):
            raise ValueError(f"{len(layers)} layers for a depth of {self.depth}: expected {self.depth}, or 1 to share")
        self.norm = norm
        self.rotary = rotary
        self.score_bias = score_bias
        self.layer_drop = layer_drop
        self.relative = relative
        self.kinds = LayerKinds() if kinds is None else kinds
        self.local_rotary = local_rotary
        self.gradient_checkpointing = False

    def forward(
        self,
        x: Tensor,
        *,
        positions: Tensor,
        key_positions: Tensor | None = None,
        mask: Mask | None = None,
        memory: Tensor | None = None,
        memory_mask: Mask | None = None,
        cache: KVCache | None = None,
        kernels: KernelSet | None = None,
        wanted: Tensor | None = None,
    ) -> Tensor:
        """Apply all layers and the final norm to x (B, T, C) and return the same shape.

        Args:
            positions: Position numbers of x, (B or 1, T).
            key_positions: Position numbers of all keys, (B or 1, S), including those in the cache. The default is
                `positions`.
            mask: Which tokens of x, and of the cache, each token may attend to.
            memory: Output of the encoder, (B, S, C), for cross-attention.
            memory_mask: Which tokens of the encoder's output may be attended to.
            cache: Keys and values of earlier calls. The new ones are written to it.
            kernels: Kernels for the attention and the norms; those of `cache` are used instead if it is given.
            wanted: (B,), the place of the only token of each sequence whose output is wanted, as (B, 1, C). The last
                layer then computes no more than the keys and values of the others, if it can.
        """
        if cache is not None:
            cache.check_layers(self.depth)
        keys = positions if key_positions is None else key_positions
        kernels = kernels if cache is None else cache.kernels
        n_keys = x.shape[1] if cache is None else cache.n_keys(x.shape[1])
        like = _like_products_of(x)
        shared_inputs = SharedInputs(
            positions=positions,
            key_positions=keys,
            mask=mask,
            n_keys=n_keys,
            like=like,
            dtype=x.dtype,
            kernels=kernels,
            is_additive=self.relative is None,
        )
        by_layer = LayerInputs(
            shared_inputs, self.kinds, score_bias=self.score_bias, rotary=self.rotary, local_rotary=self.local_rotary
        )
        if memory is not None and memory_mask is not None:
            group_size = x.shape[0] // max(memory.shape[0], 1)  # sequences that share one encoder output
            n_queries = group_size * x.shape[1]
            memory_mask = memory_mask.with_additive(n_queries, memory.shape[1], None, like, kernels)
        if kernels is not None and self.relative is None and can_fuse_stack(self.layers, self.norm, x, kernels, cache):
            given: dict[str, Any] = {"depth": self.depth, "norm": self.norm, "inputs": by_layer}
            result = fused_stack(self.layers, x, **given, memory_mask=memory_mask, kernels=kernels, cache=cache)
            if cache is not None:
                cache.advance(x.shape[1])
            return result if wanted is None else pick(result, wanted)
        length = x.shape[1]
        shared: dict[str, Any] = {"memory": memory, "memory_mask": memory_mask}
        if self.relative is not None:
            shared["relative"] = self.relative(positions, keys)
        for index in range(self.depth):
            if self.training and self.layer_drop and torch.rand(()) < self.layer_drop:
                continue
            place = index % len(self.layers)
            layer = self.layers[place]
            if wanted is not None and index == self.depth - 1 and self._can_pick(layer):
                inputs, wanted = shared | by_layer.at(wanted, index, place), None
            else:
                inputs = shared | by_layer.of(index, place)
            if self.gradient_checkpointing and self.training and cache is None:
                x = checkpoint(layer, x, use_reentrant=False, **inputs)
            else:
                x = layer(x, cache=cache.layer(index) if cache is not None else None, **inputs)
        if cache is not None:
            cache.advance(length)
        x = x if self.norm is None else normalize(self.norm, x, kernels)
        return x if wanted is None else pick(x, wanted)  # the last layer could not do it

    def _can_pick(self, last: nn.Module) -> bool:
        """Return whether the last layer can compute wanted tokens only, and no hook of the norm misses the rest."""
        is_seen = self.norm is not None and must_be_called(self.norm)
        return self.relative is None and not is_seen and isinstance(last, Layer) and last.can_pick()

    def store_memory(self, memory: Tensor, cache: KVCache) -> None:
        """Store the keys and values of the encoder's output (B, S, C) in the cache, for all layers.

        Otherwise the first forward pass with the cache does it.
        """
        for index in range(self.depth):
            layer = self.layers[index % len(self.layers)]
            assert isinstance(layer, Layer)
            assert layer.cross_attn is not None
            layer.cross_attn.store_memory(memory, cache.layer(index).cross_attn)
        cache.memory_is_ready = True


def _like_products_of(x: Tensor) -> Tensor:
    """Return an empty tensor with the device and dtype that a matrix product of x would have.

    Under autocast, a product of float32 tensors has a narrower dtype, such as bfloat16.
    """
    kind = x.device.type
    # torch.compile cannot trace is_autocast_available in older versions.
    can_cast = torch.compiler.is_compiling() or torch.amp.is_autocast_available(kind)
    is_cast = x.dtype == torch.float32 and can_cast and torch.is_autocast_enabled(kind)
    return x.new_empty(0, dtype=torch.get_autocast_dtype(kind) if is_cast else x.dtype)
