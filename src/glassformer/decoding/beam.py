"""Beam search over the cache, for a whole batch at once: keep the best few sentences, and stop when none can come in.

The textbook search, as `reference/decoding.py` writes it for one sentence: scores are log-probability / length **
length_penalty, END counting as a token; an ending counts only among the best `width` continuations.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from glassformer.models import EncoderDecoderModel


class Hypothesis(NamedTuple):
    """A sentence found, without BEGIN and END, and its score."""

    tokens: list[int]
    score: float


class _Found(NamedTuple):
    """The best finished sentences of each row so far."""

    tokens: Tensor  # (B, K, max_new), END after the end
    scores: Tensor  # (B, K), minus infinity where there is none


@torch.inference_mode()
def translate_by_beam(
    model: EncoderDecoderModel,
    source: Tensor,
    source_mask: Tensor | None = None,
    *,
    begin: int,
    end: int,
    max_new: int,
    width: int = 4,
    length_penalty: float = 1.0,
) -> list[list[Hypothesis]]:
    """The `width` best translations of each source row (B, S), best first."""
    batch, device = len(source), source.device
    rows = torch.arange(batch, device=device).repeat_interleave(width)  # (B·K,)
    memory = model.encode(source, source_mask)[rows]
    mask = None if source_mask is None else source_mask[rows]
    cache = model.new_cache(batch * width, max_new, memory.shape[1])
    tokens = torch.full((batch, width, max_new), end, device=device)
    alive = torch.full((batch, width), float("-inf"), device=device)
    alive[:, 0] = 0.0  # all beams begin alike: only the first may speak
    found = _Found(tokens.clone(), torch.full_like(alive, float("-inf")))
    last = torch.full((batch * width, 1), begin, device=device)
    for length in range(1, max_new + 1):
        logits = model.answer(model.decode(last, memory, mask, cache=cache))[:, -1]
        totals = alive.view(-1, 1) + logits.float().log_softmax(-1)  # (B·K, V)
        vocab_size = totals.shape[1]
        scores, flat = totals.view(batch, -1).topk(min(2 * width, width * vocab_size))  # (B, 2K)
        parent, token = flat // vocab_size, flat % vocab_size
        history = tokens.gather(1, parent[:, :, None].expand(-1, -1, max_new))  # (B, 2K, max_new)
        history[:, :, length - 1] = token
        found = _collect(found, history, scores, token == end, length, max_new, length_penalty)
        if length == max_new:
            break
        alive, kept = scores.masked_fill(token == end, float("-inf")).topk(width)  # (B, K)
        if _is_decided(alive, found.scores, length, max_new, length_penalty):
            break
        tokens = history.gather(1, kept[:, :, None].expand(-1, -1, max_new))
        parent = parent.gather(1, kept)
        cache.reorder((parent + torch.arange(batch, device=device)[:, None] * width).view(-1))
        last = tokens[:, :, length - 1].reshape(-1, 1)
    return _as_lists(found, end)


def _collect(
    found: _Found, history: Tensor, scores: Tensor, is_end: Tensor, length: int, max_new: int, length_penalty: float
) -> _Found:
    """Let what ended now compete with what ended before. At the last step everything ends."""
    width = found.scores.shape[1]
    ends = is_end if length < max_new else torch.ones_like(is_end)
    in_reach = torch.arange(scores.shape[1], device=scores.device) < width
    ended = (scores / length**length_penalty).masked_fill(~(ends & in_reach), float("-inf"))
    merged = torch.cat((found.scores, ended), 1)
    best, place = merged.topk(width)
    texts = torch.cat((found.tokens, history), 1)
    return _Found(texts.gather(1, place[:, :, None].expand(-1, -1, max_new)), best)


def _is_decided(alive: Tensor, finished: Tensor, length: int, max_new: int, length_penalty: float) -> bool:
    """Whether no unfinished sentence can still come in, even if it lost nothing more at its most flattering length."""
    flattering = max_new if length_penalty > 0 else length + 1
    hope = alive.max(1).values / flattering**length_penalty
    return bool((finished[:, -1] >= hope).all())


def _as_lists(found: _Found, end: int) -> list[list[Hypothesis]]:
    results = []
    for texts, scores in zip(found.tokens.tolist(), found.scores.tolist(), strict=True):
        row = []
        for text, score in zip(texts, scores, strict=True):
            if score > float("-inf"):
                row.append(Hypothesis(text[: text.index(end)] if end in text else text, score))
        results.append(row)
    return results
