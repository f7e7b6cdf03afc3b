"""A Transformer layer by fused kernels, for decoding steps of few tokens (`KernelSet.fused_linear`).

The formula is that of `Layer.forward` with pre-norm and without cross-attention. For the fewest tokens each product is
one kernel, with the norm before it and the activation or the residual sum after it:

    q, k, v = norm(x) W_qkv
    x = x + attend(q, k, v) W_out
    y = act(norm(x) W_up)
    x = x + y W_down
"""

from typing import NamedTuple

from torch import Tensor, nn

from glassformer.kernels.kernel_set import ACTIVATIONS, NewTokens, NormWeights, TokenPlace
from glassformer.nn.attention_backends import Attend
from glassformer.nn.cache import LayerCache
from glassformer.nn.dropout import Dropout
from glassformer.nn.feedforward import FeedForward
from glassformer.nn.masks import AdditiveMask, Mask
from glassformer.nn.multi_head_attention import MultiHeadAttention, merge_heads
from glassformer.nn.positions import Rotation


class LayerParts(NamedTuple):
    """The parts of a layer with pre-norm and without cross-attention."""

    attention_norm: nn.Module
    attention: MultiHeadAttention
    ffn_norm: nn.Module
    ffn: FeedForward


def can_fuse(parts: LayerParts, x: Tensor, cache: LayerCache) -> bool:
    """Return whether `fused_layer` computes a layer for x (B, T, C): few tokens, on a device with the kernels.

    The layer must be packed (`runtime/packed_model.py`) and in eval mode. Quantized layers, modules with forward hooks,
    and the documents' classes are called themselves.
    """
    return (
        cache.kernels.can_fuse_linear(x)
        and can_fuse_attention(parts.attention, x)
        and can_fuse_ffn(parts.ffn, x)
        and can_fuse_norm(parts.attention_norm, x)
        and can_fuse_norm(parts.ffn_norm, x)
        and not must_be_called(*parts)
    )


def can_fuse_attention(attention: nn.Module, x: Tensor, *, is_cross: bool = False) -> bool:
    """Return whether self-attention, or cross-attention after the first step, can be computed by its weights."""
    if type(attention) is not MultiHeadAttention or attention.training:
        return False
    return _are_plain(x, attention.q_proj if is_cross else attention.qkv_proj, attention.out_proj)


def can_fuse_ffn(ffn: nn.Module, x: Tensor) -> bool:
    """Return whether a feed-forward network can be computed by its weights."""
    if type(ffn) is not FeedForward or ffn.training or ffn.activation not in ACTIVATIONS:
        return False
    return _are_plain(x, first_linear(ffn), ffn.down_proj)


def can_fuse_norm(norm: nn.Module, x: Tensor) -> bool:
    """Return whether the kernels have this norm in the dtype of x."""
    weights = norm_weights(norm)
    return weights is not None and weights.weight.dtype == x.dtype


def must_be_called(*modules: nn.Module) -> bool:
    """Return whether modules must compute their results themselves.

    That is so if any of them, or of the modules in them, has a forward hook or a replaced forward pass, or drops
    numbers, or if all modules of the process have a hook.
    """
    everywhere = nn.modules.module
    if everywhere._global_forward_hooks or everywhere._global_forward_pre_hooks:
        return True
    parts = (part for module in modules for part in module.modules())
    return any(has_hooks(part) or (part.training and isinstance(part, Dropout | Attend)) for part in parts)


def has_hooks(module: nn.Module) -> bool:
    """Return whether a module, apart from those in it, has a forward hook or a replaced forward pass."""
    return bool(module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))


def fused_layer(
    parts: LayerParts,
    x: Tensor,
    *,
    mask: Mask | None,
    bias: Tensor | None,
    rotation: Rotation | None,
    cache: LayerCache,
) -> Tensor:
    """Apply a layer to x (B, T, C) and return the same shape. The other arguments are those of `Layer.forward`."""
    kernels, attention, ffn = cache.kernels, parts.attention, parts.ffn
    qkv, out = attention.qkv_proj, attention.out_proj
    assert isinstance(qkv, nn.Linear)
    joined = kernels.fused_linear(x, qkv.weight, qkv.bias, norm=norm_weights(parts.attention_norm))
    rotation, later = split_rotation(rotation, attention.attend, x.shape[1], mask, cache)
    q, k, v = attention.split(joined, rotation=rotation, kernels=kernels)
    mixed = write_and_attend(attention.attend, q, k, v, mask=mask, bias=bias, cache=cache, rotation=later)
    x = kernels.fused_linear(merge_heads(mixed), out.weight, out.bias, residual=x)

    first, down, norm = first_linear(ffn), ffn.down_proj, norm_weights(parts.ffn_norm)
    assert isinstance(first, nn.Linear)
    is_gated = ffn.gate_up_proj is not None
    y = kernels.fused_linear(x, first.weight, first.bias, norm=norm, activation=ffn.activation, gated=is_gated)
    return kernels.fused_linear(y, down.weight, down.bias, residual=x)


def split_rotation(
    rotation: Rotation | None, attend: Attend, n_queries: int, mask: Mask | None, cache: LayerCache
) -> tuple[Rotation | None, Rotation | None]:
    """Return the rotation for the projections, and that for `write_and_attend`, which does it if a kernel can."""
    place, added = _place_and_mask(attend, mask, cache)
    if rotation is None or n_queries != 1 or place is None or added is None:
        return rotation, None
    keys, like = place.keys, added.values
    fits = cache.kernels.can_attend(like.new_empty(1, 1, 1, keys.shape[-1]), keys, place.values, like)
    return (None, rotation) if fits and cache.kernels.can_rotate_within(keys, rotation) else (rotation, None)


def write_and_attend(
    attend: Attend,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask | None,
    bias: Tensor | None,
    cache: LayerCache,
    rotation: Rotation | None = None,
) -> Tensor:
    """Write new keys and values (B, G, T, D) to the cache and attend to it: by one kernel, if there is one for both.

    `rotation` is the one that `split_rotation` left for this.
    """
    place, added = _place_and_mask(attend, mask, cache)
    if place is not None and added is not None and added.key_end is not None:
        kernels = cache.kernels
        if kernels.can_attend(q, place.keys, place.values, added.values):
            new = NewTokens(k, v, place, rotation)
            return kernels.write_and_attend(q, new, added.values, added.key_end, attend.scale)
    if rotation is not None:
        q, k = rotation.rotate(q), rotation.rotate(k)
    return attend(q, *cache.self_attn.update(k, v), mask=mask, bias=bias)


def _place_and_mask(
    attend: Attend, mask: Mask | None, cache: LayerCache
) -> tuple[TokenPlace | None, AdditiveMask | None]:
    """Return where a step writes its new token, and the mask that a kernel takes; None twice if no kernel can."""
    added = None if mask is None else mask.additive
    has_kernel = attend.backend == "sdpa" and attend.softcap is None
    if not has_kernel or added is None or added.key_end is None:
        return None, None
    return cache.self_attn.next_place(), added


def first_linear(ffn: FeedForward) -> nn.Module | None:
    """Return the projection before the activation; None if a gated network is not packed."""
    return ffn.gate_up_proj if ffn.gate_up_proj is not None or ffn.gate_proj is not None else ffn.up_proj


def norm_weights(norm: nn.Module) -> NormWeights | None:
    """Return the weights of a norm; None if the kernels do not have it."""
    if type(norm) not in (nn.LayerNorm, nn.RMSNorm):
        return None
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
    if len(norm.normalized_shape) != 1 or norm.weight is None or norm.eps is None:
        return None
    return NormWeights(norm.weight, getattr(norm, "bias", None), norm.eps, isinstance(norm, nn.LayerNorm))


def _are_plain(x: Tensor, *linears: nn.Module | None) -> bool:
    return all(type(linear) is nn.Linear and linear.weight.dtype == x.dtype for linear in linears)
