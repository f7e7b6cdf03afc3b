"""Greedy decoding over the cache: the most likely token at each step, each step computing its new token only."""

from collections.abc import Callable

import torch
from torch import Tensor

from glassformer.models import DecoderModel, EncoderDecoderModel


@torch.inference_mode()
def translate_greedily(
    model: EncoderDecoderModel,
    source: Tensor,
    source_mask: Tensor | None = None,
    *,
    begin: int,
    end: int,
    max_new: int,
) -> list[list[int]]:
    """What the model writes for each source row (B, S): token ids after `begin`, up to and without `end`."""
    memory = model.encode(source, source_mask)
    cache = model.new_cache(len(source), max_new, memory.shape[1])
    first = torch.full((len(source), 1), begin, device=source.device)
    return _decode(
        lambda tokens, _: model.answer(model.decode(tokens, memory, source_mask, cache=cache)),
        first,
        None,
        end,
        max_new,
    )


@torch.inference_mode()
def continue_greedily(
    model: DecoderModel, tokens: Tensor, mask: Tensor | None = None, *, end: int, max_new: int
) -> list[list[int]]:
    """What the model writes after each row (B, T): token ids up to and without `end`.

    Rows of different lengths are padded on the *left*, with False in `mask`, so that all of them end where writing
    begins.
    """
    cache = model.new_cache(len(tokens), tokens.shape[1] + max_new)
    return _decode(lambda new, mask: model(new, mask, cache=cache), tokens, mask, end, max_new)


def _decode(
    step: Callable[[Tensor, Tensor | None], Tensor], tokens: Tensor, mask: Tensor | None, end: int, max_new: int
) -> list[list[int]]:
    written: list[list[int]] = [[] for _ in range(len(tokens))]
    is_done = torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device)
    for _ in range(max_new):
        best = step(tokens, mask)[:, -1].argmax(-1)  # (B,)
        is_done = is_done | (best == end)
        for row, (token, done) in enumerate(zip(best.tolist(), is_done.tolist(), strict=True)):
            if not done:
                written[row].append(token)
        if bool(is_done.all()):
            break
        tokens, mask = best[:, None], None
    return written
