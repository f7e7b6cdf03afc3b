"""Prepare token ids for a stack: check them, number their positions, build the mask."""

from typing import NamedTuple

import torch
from torch import Tensor

from glassformer.kernels.kernel_set import is_exporting
from glassformer.models.config import ModelConfig
from glassformer.nn import Embeddings, KVCache, Mask, as_mask
from glassformer.nn.masks import AdditiveMask
from glassformer.nn.tensor_checks import check_length, check_shape

SCORE_BIASES = ("relative", "alibi")
"""The kinds of positions that need the position of every key."""


class Inputs(NamedTuple):
    """Position numbers and attention mask of the tokens that a stack is applied to, as `prepare` returns them."""

    positions: Tensor  # (B or 1, T)
    key_positions: Tensor  # (B or 1, S), those in the cache included
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
    """Check token ids (B, T) and return their position numbers and attention mask.

    Position numbers count only real tokens, so that the side and amount of padding do not change the result. They start
    at 0 in each packed document.

    Args:
        name: Name of the token argument in error messages.
        causal: Whether a token may attend only to itself and earlier tokens.
        real: (B, T), True for real tokens, False for padding.
        segments: (B, T), number of the packed document that each token belongs to.
        cache: Keys and values of earlier tokens. It stores which of the new tokens are real.
        plain_positions: Number all tokens 0, 1, 2, ..., padding included. It is ignored if the cache's attribute
            `counts_real_tokens` is True, as decoding steps (`runtime/step_runner.py`) set it.
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

    if cache is not None and cache.starts is not None:
        return _prepare_ragged(cache.starts, cache.is_active, length, cache.n_keys(length), config)
    has_bias = config.relative_bias or config.positions in SCORE_BIASES
    if cache is not None and real is None and config.sliding_window is None and not has_bias:
        weight = getattr(embeddings.tokens, "weight", None)  # a quantized table has none, and gives float32
        numbers = cache.number_step(torch.float32 if weight is None else weight.dtype, config.max_len)
        if numbers is not None:
            additive = AdditiveMask(numbers.added, key_end=numbers.key_end, kernels=cache.kernels)
            mask = Mask(causal=True, real=cache.real, attends_to_self=True, additive=additive)
            return Inputs(numbers.positions, numbers.positions, mask)
    is_real = real if cache is None else cache.note_real(real, length)
    n_keys = length if cache is None else cache.n_keys(length)
    if cache is None or not cache.is_fixed:  # for a fixed cache n_keys is its capacity, and the caller has checked
        check_length(name, _n_positions(n_keys, is_real, config.max_len, plain_positions), config.max_len)
    keys = torch.arange(n_keys, device=tokens.device)[None]
    if not plain_positions and (is_real is not None or segments is not None):
        keys = count_positions(torch.ones_like(tokens, dtype=torch.bool) if is_real is None else is_real, segments)
        if config.max_len is not None:  # the positions of padding have no effect, but must be in the table
            keys = keys.clamp_max(config.max_len - 1)
    queries = keys if cache is None else cache.newest(keys, length)
    window = config.sliding_window
    if window is not None and not is_exporting() and n_keys <= window:
        window = None  # all keys are in it (an exported graph must not depend on the length)
    mask = Mask(
        causal=causal,
        window=window,
        query_positions=queries,
        key_positions=keys,
        real=is_real,
        attends_to_self=real is None,
        query_segments=segments,
        key_segments=segments,
    )
    return Inputs(queries, keys, mask)


def _prepare_ragged(starts: Tensor, is_active: Tensor | None, length: int, n_keys: int, config: ModelConfig) -> Inputs:
    """Return the inputs of causal sequences whose new tokens begin at different positions, `starts` (B,).

    The keys of each sequence stand at positions 0, 1, 2, ...; those after a query are not its own and are masked. The
    caller has checked the lengths.
    """
    keys = torch.arange(n_keys, device=starts.device)[None]
    queries = starts[:, None] + torch.arange(length, device=starts.device)  # (B, T)
    allowed = keys[:, None] <= queries[:, :, None]  # (B, T, S)
    if is_active is not None:
        allowed = allowed & is_active[:, None, None]
    if config.max_len is not None:  # the positions of padding have no effect, but must be in the table
        keys, queries = keys.clamp_max(config.max_len - 1), queries.clamp_max(config.max_len - 1)
    mask = Mask(
        window=config.sliding_window,
        query_positions=queries,
        key_positions=keys,
        allowed=allowed[:, None],
        attends_to_self=is_active is None,
    )
    return Inputs(queries, keys, mask)


def _n_positions(n_keys: int, real: Tensor | None, limit: int | None, plain_positions: bool) -> int:
    """Return how many positions the longest sequence uses, for the check against `limit` in `prepare`.

    If `n_keys`, which is never less, is within the limit, it is returned instead, and padding is not counted.
    """
    if limit is None or n_keys <= limit or real is None or plain_positions:
        return n_keys
    return int(real.sum(1).max())


def count_positions(real: Tensor, segments: Tensor | None) -> Tensor:
    """Return each token's position, the number of real tokens before it in its packed document: (B, S) -> (B, S)."""
    before = real.cumsum(1) - real.long()
    if segments is not None:
        is_start = torch.ones_like(segments, dtype=torch.bool)
        is_start[:, 1:] = segments[:, 1:] != segments[:, :-1]
        before = before - torch.where(is_start, before, 0).cummax(1).values
    return before


def check_segments(segments: Tensor) -> None:
    """Raise TypeError if the document numbers (B, T) are floating-point, ValueError if they decrease along a sequence.

    The second check is made on the CPU only.
    """
    if segments.is_floating_point():
        raise TypeError(f"segments has dtype {segments.dtype}: expected whole numbers")
    if segments.device.type == "cpu" and not torch.compiler.is_compiling() and (segments.diff(dim=1) < 0).any():
        raise ValueError(
            "segments decrease along a row: expected document numbers that never decrease from left to right"
        )
