"""What every model does before its first layer: check the tokens, number their positions, state the mask."""

from typing import NamedTuple

import torch
from torch import Tensor

from glassformer.models.config import ModelConfig
from glassformer.nn import Embeddings, KVCache, Mask, as_mask
from glassformer.nn.checks import check_length, check_shape


class Inputs(NamedTuple):
    """Tokens made ready for a stack."""

    positions: Tensor  # (B or 1, T)
    mask: Mask
    padding: Tensor | None  # (B, T), True = a real token


def prepare(
    name: str,
    tokens: Tensor,
    embeddings: Embeddings,
    config: ModelConfig,
    *,
    causal: bool,
    padding: Tensor | None = None,
    segments: Tensor | None = None,
    token_types: Tensor | None = None,
    cache: KVCache | None = None,
) -> Inputs:
    """Everything the stack needs to know about these tokens, or an error that names what is wrong with them.

    Positions count real tokens, so that padding on either side changes nothing; packed documents count from 0 each.
    """
    embeddings.check(name, tokens, token_types)
    batch, length = tokens.shape
    check_length(name, length + (cache.length if cache is not None else 0), config.max_len)
    if padding is not None:
        check_shape(f"{name} mask", padding, (batch, length))
        padding = as_mask(f"{name} mask", padding)
    if segments is not None:
        if cache is not None:
            raise ValueError("segments were given together with a cache: expected packed documents without a cache")
        check_shape("segments", segments, (batch, length))
    if cache is not None and cache.batch_size != batch:
        raise ValueError(f"{name} has {batch} rows: expected the cache's {cache.batch_size}")

    positions = _positions(tokens, padding, segments, cache)
    seen = padding if cache is None else cache.note_padding(padding, length)
    mask = Mask(
        causal=causal, window=config.sliding_window, padding=seen, query_segments=segments, key_segments=segments
    )
    return Inputs(positions, mask, padding)


def _positions(tokens: Tensor, padding: Tensor | None, segments: Tensor | None, cache: KVCache | None) -> Tensor:
    index = torch.arange(tokens.shape[1], device=tokens.device)[None]  # (1, T)
    if segments is not None:
        is_start = torch.ones_like(segments, dtype=torch.bool)
        is_start[:, 1:] = segments[:, 1:] != segments[:, :-1]
        return index - torch.where(is_start, index, 0).cummax(1).values
    if cache is not None and cache.has_padding:
        before = cache.padding[:, : cache.length].sum(1, keepdim=True)
    else:
        before = torch.full((1, 1), 0 if cache is None else cache.length, device=tokens.device)
    if padding is not None:
        index = (padding.cumsum(1) - 1).clamp_min(0)
    return before + index
