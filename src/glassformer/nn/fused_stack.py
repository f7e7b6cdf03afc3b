"""A stack of layers by fused kernels, for encoders and for decoding steps (`KernelSet.add_and_normalize`).

The kernel after a sublayer adds its result to x, and computes the next norm. With pre-norm:

    x = x + branch; y = norm(x)     # one kernel
    branch = sublayer(y)

With post-norm, sum and norm after a sublayer are one kernel: x = norm(x + sublayer(x)). The last product of a sublayer
may return partial sums, which this kernel adds up.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import Tensor, nn

from glassformer.kernels.kernel_set import KernelSet
from glassformer.nn.cache import KVCache, LayerCache
from glassformer.nn.feedforward import FeedForward
from glassformer.nn.fused_layer import (
    can_fuse_attention,
    can_fuse_ffn,
    can_fuse_norm,
    first_linear,
    must_be_called,
    norm_weights,
    split_rotation,
    write_and_attend,
)
from glassformer.nn.layer_inputs import LayerInputs
from glassformer.nn.layers import Layer, Sublayer
from glassformer.nn.masks import Mask
from glassformer.nn.multi_head_attention import MultiHeadAttention, merge_heads


class Branch(NamedTuple):
    """The result of a sublayer, which is added to x (B, T, C): the sum of `parts` (P, B, T, C), plus the bias (C,)."""

    parts: Tensor | None
    bias: Tensor | None


class LayerState(NamedTuple):
    """Inputs of the sublayers of one layer besides x."""

    layer: Layer
    kernels: KernelSet
    cache: LayerCache | None
    """None in an encoder."""
    inputs: dict[str, Any]
    """The mask, bias and rotation of self-attention."""
    memory_mask: Mask | None


def can_fuse_stack(
    layers: nn.ModuleList, norm: nn.Module | None, x: Tensor, kernels: KernelSet, cache: KVCache | None
) -> bool:
    """Return whether `fused_stack` computes these layers and the final norm for x (B, T, C).

    It does so up to a number of tokens, on a device with the kernels. For the fewest, `fused_layer.py` computes
    decoder layers with pre-norm and without cross-attention. The layers must be packed and in eval mode, and have no
    hooks.
    """
    if not kernels.can_fuse_linear(x) or not (norm is None or can_fuse_norm(norm, x)):
        return False
    if cache is not None and kernels.fuses_norms(x) and not any(_needs_stack(layer) for layer in layers):
        return False
    return all(_can_fuse(layer, x, cache) for layer in layers) and not must_be_called(layers, *([norm] if norm else []))


def fused_stack(
    layers: nn.ModuleList,
    x: Tensor,
    *,
    depth: int,
    norm: nn.Module | None,
    inputs: LayerInputs,
    memory_mask: Mask | None,
    kernels: KernelSet,
    cache: KVCache | None,
) -> Tensor:
    """Apply the layers and the final norm to x (B, T, C) and return the same shape."""
    branch = Branch(None, None)
    for index in range(depth):
        place = index % len(layers)
        layer = layers[place]
        assert isinstance(layer, Layer)
        own_cache = None if cache is None else cache.layer(index)
        state = LayerState(layer, kernels, own_cache, inputs.of(index, place), memory_mask)
        for sublayer, compute in _sublayers_of(layer):
            weights = norm_weights(sublayer.norm)
            if sublayer.placement == "pre":
                x, y = kernels.add_and_normalize(x, branch.parts, branch.bias, weights)
                branch = compute(y, state)
            else:
                if branch.parts is not None:  # of a layer with pre-norm
                    x, _ = kernels.add_and_normalize(x, branch.parts, branch.bias, None)
                branch = compute(x, state)
                _, x = kernels.add_and_normalize(x, branch.parts, branch.bias, weights)
                branch = Branch(None, None)
    if norm is None and branch.parts is None:
        return x
    return kernels.add_and_normalize(x, branch.parts, branch.bias, None if norm is None else norm_weights(norm))[1]


def _needs_stack(layer: nn.Module) -> bool:
    """Return whether `fused_layer.py` cannot compute this layer."""
    return not isinstance(layer, Layer) or layer.cross_attn is not None or layer.ffn_sublayer.placement != "pre"


def _can_fuse(layer: nn.Module, x: Tensor, cache: KVCache | None) -> bool:
    if type(layer) is not Layer or layer.parallel != "none":
        return False
    for sublayer in (layer.self_attn_sublayer, layer.cross_attn_sublayer, layer.ffn_sublayer):
        if sublayer is None:
            continue
        is_plain = sublayer.takes_kernels and sublayer.placement in ("pre", "post") and sublayer.multiplier == 1.0
        if not is_plain or not can_fuse_norm(sublayer.norm, x):
            return False
    cross = layer.cross_attn
    has_memory = cache is not None and cache.memory_is_ready
    can_cross = cross is None or (has_memory and can_fuse_attention(cross, x, is_cross=True))
    return can_cross and can_fuse_attention(layer.self_attn, x) and can_fuse_ffn(layer.ffn, x)


def _sublayers_of(layer: Layer) -> Iterator[tuple[Sublayer, Any]]:
    """Yield the residual connections of a layer, each with the function that computes its branch from (y, state)."""
    yield layer.self_attn_sublayer, _self_attention
    if layer.cross_attn_sublayer is not None:
        yield layer.cross_attn_sublayer, _cross_attention
    yield layer.ffn_sublayer, _feed_forward


def _self_attention(y: Tensor, state: LayerState) -> Branch:
    attention, kernels, cache = state.layer.self_attn, state.kernels, state.cache
    inputs = dict(state.inputs)
    rotation, later = inputs.pop("rotation"), None
    if cache is not None:
        rotation, later = split_rotation(rotation, attention.attend, y.shape[1], inputs["mask"], cache)
    q, k, v = attention.split(_linear(kernels, attention.qkv_proj, y), rotation=rotation, kernels=kernels)
    if cache is None:
        mixed = attention.attend(q, k, v, **inputs)
    else:
        mixed = write_and_attend(attention.attend, q, k, v, **inputs, cache=cache, rotation=later)
    return _project_out(attention, mixed, kernels)


def _cross_attention(y: Tensor, state: LayerState) -> Branch:
    attention, kernels, cache = state.layer.cross_attn, state.kernels, state.cache
    assert attention is not None
    assert cache is not None
    q = attention.split_queries(_linear(kernels, attention.q_proj, y), rotation=None, kernels=kernels)
    mixed = attention.attend_to_shared(q, *cache.cross_attn.read(), mask=state.memory_mask)
    return _project_out(attention, mixed, kernels)


def _feed_forward(y: Tensor, state: LayerState) -> Branch:
    ffn, kernels = state.layer.ffn, state.kernels
    assert isinstance(ffn, FeedForward)
    is_gated = ffn.gate_up_proj is not None
    hidden = _linear(kernels, first_linear(ffn), y, activation=ffn.activation, gated=is_gated)
    return Branch(kernels.linear_in_parts(hidden, ffn.down_proj.weight), ffn.down_proj.bias)


def _project_out(attention: MultiHeadAttention, mixed: Tensor, kernels: KernelSet) -> Branch:
    out = attention.out_proj
    return Branch(kernels.linear_in_parts(merge_heads(mixed), out.weight), out.bias)


def _linear(kernels: KernelSet, linear: nn.Module | None, x: Tensor, **options: Any) -> Tensor:
    assert isinstance(linear, nn.Linear)
    return kernels.fused_linear(x, linear.weight, linear.bias, **options)
