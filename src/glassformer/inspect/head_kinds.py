"""What an attention head does, measured on one text, and how attention adds up over the layers (rollout)."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from glassformer.inspect.json_values import number

CLEAR = 0.4
"""A head has a kind if at least this share of its weight follows the pattern, averaged over the queries."""
LONG = 300
"""Rollout of longer texts is computed in float32."""
MOST_QUERIES = 128
"""The kind of a head is measured on about this many queries, evenly spread over a longer text."""
DIFFUSE = 0.9
"""A head is diffuse if the entropy of its rows is at least this share of the largest possible one."""


def head_kind(
    weights: Tensor, *, is_causal: bool, query_ids: Sequence[int], key_ids: Sequence[int], is_cross: bool = False
) -> dict[str, Any]:
    """Return the kind of one head and its score, from its attention weights (T, S).

    The score is the mean weight on the tokens of the pattern: the previous, next or first token, the query's own
    position ("diagonal"; in cross-attention the source token at the same relative position, or a neighbor of it), or
    other places of the same token ("same word"). For "diffuse" it is the entropy of the rows, divided by that of
    uniform weights. A head without a clear pattern is "mixed", with its highest score.
    """
    rows = torch.arange(0, len(weights), max(1, len(weights) // MOST_QUERIES))
    scores = pattern_scores(weights, query_ids, key_ids, rows, is_cross=is_cross)
    spread = row_entropy(weights, rows, is_causal=is_causal)
    best = max(scores, key=lambda name: scores[name])
    if spread >= DIFFUSE:
        return {"kind": "diffuse", "score": number(spread)}
    if scores[best] >= CLEAR:
        return {"kind": best, "score": number(scores[best])}
    return {"kind": "mixed", "score": number(scores[best])}


def pattern_scores(
    weights: Tensor, query_ids: Sequence[int], key_ids: Sequence[int], queries: Tensor, *, is_cross: bool
) -> dict[str, float]:
    """Return the mean weight (0 to 1) that some rows `queries` of a head's weights (T, S) put on each pattern."""
    n_queries, n_keys = weights.shape
    keys, weights = torch.arange(n_keys), weights[queries]
    same = torch.tensor(list(query_ids))[queries, None] == torch.tensor(list(key_ids))[None]
    if is_cross:
        expected = queries * ((n_keys - 1) / max(n_queries - 1, 1))
        near = (keys[None] - expected[:, None]).abs() <= 1
        found = {"diagonal": _mean(weights, near), "first token": _mean(weights, (keys == 0).expand(len(queries), -1))}
        return found | {"same word": _mean(weights, same)}
    distance = keys[None] - queries[:, None]
    return {
        "previous token": _mean(weights, distance == -1),
        "next token": _mean(weights, distance == 1),
        "first token": _mean(weights, (distance < 0) & (keys == 0)),
        "diagonal": _mean(weights, distance == 0),
        "same word": _mean(weights, same & (distance != 0)),
    }


def _mean(weights: Tensor, pattern: Tensor) -> float:
    """Return the mean weight on a pattern (T, S), over the queries that have a token of the pattern to look at."""
    has_any = pattern.any(1)
    # One query alone is no pattern: every first row of a causal head looks at the first token.
    return float((weights * pattern).sum(1)[has_any].mean()) if int(has_any.sum()) > 1 else 0.0


def row_entropy(weights: Tensor, queries: Tensor, *, is_causal: bool) -> float:
    """Return the mean entropy of some rows of weights (T, S), divided by that of uniform weights: 0 to 1."""
    n_queries, n_keys = weights.shape
    allowed = queries + n_keys - n_queries + 1 if is_causal else torch.full((len(queries),), n_keys)
    weights = weights[queries]
    several = allowed > 1
    if not several.any():
        return 0.0
    entropy = torch.special.entr(weights.double()).sum(1)
    return float((entropy[several] / allowed[several].double().log()).mean())


def rollout(layers: Sequence[Tensor]) -> Tensor:
    """Return attention rollout (Abnar and Zuidema 2020): how much each input token contributes to each position.

    `layers` are attention weights (H, T, T). Each layer's mean over the heads is averaged with the identity, which
    stands for the residual connection, and multiplied by that of the layer below.
    """
    length = layers[0].shape[-1]
    total = torch.eye(length, dtype=torch.float64 if length <= LONG else torch.float32)
    for weights in layers:
        total = (total + weights.to(total.dtype).mean(0) @ total) / 2
    return total


def decoder_rollout(layers: Sequence[tuple[Tensor, Tensor]], encoder: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rollout of a decoder with cross-attention: the shares of target (T, T) and source tokens (T, S).

    `layers` are pairs of self-attention (H, T, T) and cross-attention weights (H, T, S); `encoder` is the rollout of
    the encoder. The shares of a position add up to 1.
    """
    target = torch.eye(layers[0][0].shape[-1], dtype=encoder.dtype)
    source = torch.zeros(len(target), len(encoder), dtype=encoder.dtype)
    for self_weights, cross_weights in layers:
        own, cross = self_weights.to(encoder.dtype).mean(0), cross_weights.to(encoder.dtype).mean(0)
        target, source = (target + own @ target) / 2, (source + own @ source) / 2
        target, source = target / 2, (source + cross @ encoder) / 2
    return target, source


def pooling_factor(length: int, longest: int) -> int:
    """Return by which factor a map of attention is reduced, so that its longer side is at most `longest`."""
    return math.ceil(length / longest)
