"""A bound of the keys and values of a quantized model, from its weights: whether a float16 cache can hold them.

float16 ends at 65,504. A larger key or value would become infinite, and attention would return zeros or NaN. For most
models this can be ruled out. A norm divides a vector of n numbers by their root mean square, so that the magnitudes of
the quotients add up to at most n (Cauchy and Schwarz: at most √n times the length of the norm's weights, if these
multiply the quotients). A linear layer's outputs are then at most its largest weight times this sum, plus its bias.

In this module, the size of a vector is the sum of the magnitudes of its numbers.
"""

import math
import weakref
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from glassformer.models import DecoderModel
from glassformer.nn import Layer, LearnedPositions, MultiHeadAttention, SinusoidalPositions, Stack
from glassformer.nn.embeddings import Embeddings
from glassformer.nn.groupwise_linear import GroupwiseLinear
from glassformer.nn.norms import MeanStdNorm, OffsetRMSNorm
from glassformer.nn.quantized_linear import Int8Linear, TorchInt8Linear
from glassformer.runtime.step_runner import TextModel

QUANTIZED = Int8Linear | TorchInt8Linear | GroupwiseLinear
LIMIT = torch.finfo(torch.float16).max / 2
"""Half of what float16 holds, because rotary positions may enlarge a key by √2."""
_KNOWN: "weakref.WeakKeyDictionary[TextModel, bool]" = weakref.WeakKeyDictionary()


def fits_float16(model: TextModel) -> bool:
    """Return whether no key and no value of the decoder can be too large for float16, whatever the input."""
    if model not in _KNOWN:
        _KNOWN[model] = largest_cached(model) <= LIMIT
    return _KNOWN[model]


@torch.inference_mode()
def largest_cached(model: TextModel) -> float:
    """Return a bound of the magnitude of all keys and values of the decoder; infinity if none is known."""
    if model.config.rope_scaling != "none":  # it may multiply keys by a factor
        return math.inf
    found = 0.0
    if isinstance(model, DecoderModel):
        memory, embeddings = 0.0, model.embeddings
    else:
        *_, memory = _sizes(model.encoder, model.source_embeddings)
        embeddings = model.target_embeddings
    for layer, size in zip(_layers(model.decoder), _sizes(model.decoder, embeddings), strict=False):
        found = max(found, _largest_output(layer.self_attn, size))
        if layer.cross_attn is not None:
            found = max(found, _largest_output(layer.cross_attn, memory))
    return found


def _layers(stack: Stack) -> list[Layer]:
    layers = [layer for layer in stack.layers if isinstance(layer, Layer)]
    return [layers[index % len(layers)] for index in range(stack.depth)]


def _sizes(stack: Stack, embeddings: Embeddings) -> Iterator[float]:
    """Yield bounds of the size of the vectors that each layer's self-attention projects, and then of the output."""
    size = math.inf
    for index, layer in enumerate(_layers(stack)):
        parts = [layer.self_attn_sublayer, layer.cross_attn_sublayer, layer.ffn_sublayer]
        sublayers = [part for part in parts if part is not None]
        placement = layer.self_attn_sublayer.placement
        if placement in ("pre", "sandwich"):
            yield _size_after(layer.self_attn_sublayer.norm)
            continue
        if index == 0:
            size = _embedding_size(embeddings)
        yield size
        if placement == "post":
            size = _size_after(layer.ffn_sublayer.norm)
        else:
            size += sum(abs(part.multiplier) * _size_after(part.norm) for part in sublayers)
    yield size if stack.norm is None else _size_after(stack.norm)


def _size_after(norm: nn.Module) -> float:
    """Return a bound of the size of a norm's output; infinity for another module."""
    if not isinstance(norm, nn.LayerNorm | nn.RMSNorm | MeanStdNorm | OffsetRMSNorm):
        return math.inf
    weight, bias = norm.weight, getattr(norm, "bias", None)
    if weight is None:
        return float(norm.normalized_shape[0])
    scale = weight + 1 if isinstance(norm, OffsetRMSNorm) else weight
    size = float(scale.norm()) * math.sqrt(len(scale))
    return size if bias is None else size + float(bias.abs().sum())


def _embedding_size(embeddings: Embeddings) -> float:
    if embeddings.projection is not None or not isinstance(embeddings.tokens, nn.Embedding):
        return math.inf
    if embeddings.norm is not None:
        return _size_after(embeddings.norm)
    size = _largest_row(embeddings.tokens.weight) * (1.0 if embeddings.scale is None else abs(embeddings.scale))
    if embeddings.token_types is not None:
        size += _largest_row(embeddings.token_types.weight)
    if isinstance(embeddings.positions, SinusoidalPositions):
        return size + embeddings.tokens.embedding_dim
    if isinstance(embeddings.positions, LearnedPositions):
        return size + _largest_row(embeddings.positions.weight)
    return size if embeddings.positions is None else math.inf


def _largest_row(weight: Tensor) -> float:
    """Return a bound of the size of each row: √n times its length, which is computed faster."""
    return float(torch.linalg.vector_norm(weight.detach(), dim=1).max()) * math.sqrt(weight.shape[1])


def _largest_output(attention: MultiHeadAttention, size: float) -> float:
    """Return a bound of the keys and values of an attention whose inputs have at most this size."""
    fused = attention.qkv_proj
    layers: list[nn.Module] = [attention.k_proj, attention.v_proj] if fused is None else [fused]
    bounds = [layer.bound_outputs(size) for layer in layers if isinstance(layer, QUANTIZED)]
    if len(bounds) < len(layers):
        return math.inf
    width = attention.n_kv_heads * attention.head_dim  # of the keys, and of the values, which come last
    outputs = torch.cat(bounds)
    largest_key, largest_value = float(outputs[-2 * width : -width].max()), float(outputs[-width:].max())
    if attention.clip_qkv is not None:
        largest_key, largest_value = min(largest_key, attention.clip_qkv), min(largest_value, attention.clip_qkv)
    if attention.k_norm is not None:
        largest_key = _size_after(attention.k_norm)
    return max(largest_key, largest_value)
