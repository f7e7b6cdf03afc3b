"""What every model does before its first layer: check the tokens, number their positions, state the mask."""

from typing import NamedTuple

import torch
from torch import Tensor

from glassformer.models.config import ModelConfig
from glassformer.nn import Embeddings, KVCache, Mask, as_mask
from glassformer.nn.tensor_checks import check_length, check_shape


class Inputs(NamedTuple):
    """Tokens made ready for a stack."""

    positions: Tensor  # (B or 1, T)
    key_positions: Tensor  # (B or 1, S), of everything the cache holds, these tokens included
    mask: Mask


def prepare(
    name: str,
    tokens: Tensor,
    embeddings: Embeddings,
    config: ModelConfig,
    *,
    causal: bool,
    real: Tensor | None = None,
    segments: Tensor | None = None,
    token_types: Tensor | None = None,
    cache: KVCache | None = None,
    plain_positions: bool = False,
) -> Inputs:
    """Everything the stack needs to know about these tokens, or an error that names what is wrong with them.

    Positions count real tokens, so that padding changes nothing, wherever it stands; packed documents count from 0
    each. Plain positions are 0, 1, 2, ... whatever the tokens are, unless the cache counts real tokens.
    """
    plain_positions = plain_positions and (cache is None or not cache.counts_real_tokens)
    embeddings.check(name, tokens, token_types)
    batch, length = tokens.shape
    if real is not None:
        mask_name = "mask" if name == "tokens" else f"{name}_mask"
        real = as_mask(mask_name, real)
        check_shape(mask_name, real, (batch, length))
    if segments is not None:
        if cache is not None:
            raise ValueError("segments were given together with a cache: expected packed documents without a cache")
        check_shape("segments", segments, (batch, length))
        check_segments(segments)
    if cache is not None and cache.batch_size != batch:
        raise ValueError(f"{name} has {batch} rows: expected the cache's {cache.batch_size}")

    seen = real if cache is None else cache.note_real(real, length)
    n_keys = length if cache is None else cache.n_keys(length)
    if cache is None or not cache.is_fixed:  # there who writes has counted, and room is no length
        check_length(name, _reach(n_keys, seen, config.max_len, plain_positions), config.max_len)
    keys = torch.arange(n_keys, device=tokens.device)[None]
    if not plain_positions and (seen is not None or segments is not None):
        keys = count_positions(torch.ones_like(tokens, dtype=torch.bool) if seen is None else seen, segments)
        if config.max_len is not None:  # padding behind a full row stands at no position; any will do
            keys = keys.clamp_max(config.max_len - 1)
    queries = keys if cache is None else cache.newest(keys, length)
    mask = Mask(
        causal=causal,
        window=config.sliding_window,
        query_positions=queries,
        key_positions=keys,
        real=seen,
        sees_itself=real is None,
        query_segments=segments,
        key_segments=segments,
    )
    return Inputs(queries, keys, mask)


def _reach(n_keys: int, seen: Tensor | None, limit: int | None, plain_positions: bool) -> int:
    """How many positions are needed: padding takes none, unless positions are plain. Counted only where it matters."""
    if limit is None or n_keys <= limit or seen is None or plain_positions:
        return n_keys
    return int(seen.sum(1).max())


def count_positions(real: Tensor, segments: Tensor | None) -> Tensor:
    """How many real tokens stand before each token, in its own document: (B, S) -> (B, S)."""
    before = real.cumsum(1) - real.long()
    if segments is not None:
        is_start = torch.ones_like(segments, dtype=torch.bool)
        is_start[:, 1:] = segments[:, 1:] != segments[:, :-1]
        before = before - torch.where(is_start, before, 0).cummax(1).values
    return before


def check_segments(segments: Tensor) -> None:
    """Document numbers that never fall along a row: the same number again would be the same document."""
    if segments.is_floating_point():
        raise TypeError(f"segments has dtype {segments.dtype}: expected whole numbers")
    if segments.device.type == "cpu" and not torch.compiler.is_compiling() and (segments.diff(dim=1) < 0).any():
        raise ValueError("segments fall along a row: expected document numbers that stay or rise from left to right")
