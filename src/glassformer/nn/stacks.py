"""A stack of layers: the encoder, or the decoder."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from glassformer.nn.cache import KVCache
from glassformer.nn.layers import Layer
from glassformer.nn.masks import Mask
from glassformer.nn.positions import Alibi, RelativeBias, Rotary
from glassformer.nn.tensor_checks import check_probability


class Stack(nn.Module):
    """Layers applied one after the other, then the final norm where there is one.

    With one layer and `depth` of many the layer is shared: it is applied `depth` times (document 004; ALBERT). What
    depends on positions and masks alone, the rotation and what is added to scores, is computed here, once for all.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        *,
        depth: int | None = None,
        norm: nn.Module | None = None,
        rotary: Rotary | None = None,
        score_bias: RelativeBias | Alibi | None = None,
        layer_drop: float = 0.0,
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
    ) -> Tensor:
        """x (B, T, C) at position numbers (B or 1, T), memory (B, S, C) -> (B, T, C).

        `key_positions` are those of all keys, (B or 1, S), where a cache holds more of them than x brings.
        """
        if cache is not None:
            cache.check_layers(self.depth)
        keys = positions if key_positions is None else key_positions
        rotation = self.rotary(positions) if self.rotary is not None else None
        bias = self.score_bias(positions, keys).to(x) if self.score_bias is not None else None
        kernels = None if cache is None else cache.kernels
        if mask is not None:
            n_keys = x.shape[1] if cache is None else cache.n_keys(x.shape[1])
            mask = mask.spelled_out(x.shape[1], n_keys, bias, _in_products(x), kernels)
        if memory is not None and memory_mask is not None:
            copies = x.shape[0] // max(memory.shape[0], 1)  # of rows that share a memory, and look at it together
            n_queries = copies * x.shape[1]
            memory_mask = memory_mask.spelled_out(n_queries, memory.shape[1], None, _in_products(x), kernels)
        shared: dict[str, Any] = {"mask": mask, "bias": bias, "rotation": rotation}
        shared |= {"memory": memory, "memory_mask": memory_mask}
        for index in range(self.depth):
            if self.training and self.layer_drop and torch.rand(()) < self.layer_drop:
                continue
            layer = self.layers[index % len(self.layers)]
            if self.gradient_checkpointing and self.training and cache is None:
                x = checkpoint(layer, x, use_reentrant=False, **shared)
            else:
                x = layer(x, cache=cache.layer(index) if cache is not None else None, **shared)
        if cache is not None:
            cache.advance(x.shape[1])
        return x if self.norm is None else self.norm(x)


def _in_products(x: Tensor) -> Tensor:
    """An empty tensor where x is, of the numbers that products of x will have."""
    kind = x.device.type
    can_cast = torch.compiler.is_compiling() or torch.amp.is_autocast_available(kind)  # older compilers cannot ask
    is_cast = x.dtype == torch.float32 and can_cast and torch.is_autocast_enabled(kind)
    return x.new_empty(0, dtype=torch.get_autocast_dtype(kind) if is_cast else x.dtype)
