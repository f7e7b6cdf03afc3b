"""Greedy decoding over the cache: the most likely token at each step, each step computing its new token only."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from glassformer.models import DecoderModel, EncoderDecoderModel, Model


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
    """What the model writes for each source row (B, S): token ids after `begin`, up to and without `end`.

    At most `max_new` tokens, and never more than the model's limit.
    """
    max_new = _within_limit(model, 1, max_new)
    with writing(model):
        memory = model.encode(source, source_mask)
        cache = model.new_cache(len(source), max_new, memory.shape[1])
        first = torch.full((len(source), 1), begin, device=source.device)

        def step(tokens: Tensor, mask: Tensor | None) -> Tensor:
            return model.answer(model.decode(tokens, memory, source_mask, cache=cache))

        return _decode(step, first, None, end, max_new)


@torch.inference_mode()
def continue_greedily(
    model: DecoderModel, tokens: Tensor, mask: Tensor | None = None, *, end: int, max_new: int
) -> list[list[int]]:
    """What the model writes after each row (B, T): token ids up to and without `end`.

    Rows of different lengths are padded on the *left*, with False in `mask`, so that all of them end where writing
    begins.
    """
    if tokens.dim() != 2:
        raise ValueError(f"tokens has shape {tuple(tokens.shape)}: expected (batch, length)")
    if mask is not None and not mask[:, -1].all():
        raise ValueError("mask ends with padding in some rows: expected padding on the left, where nothing is written")
    max_new = _within_limit(model, tokens.shape[1], max_new)
    with writing(model):
        cache = model.new_cache(len(tokens), tokens.shape[1] + max_new)
        return _decode(lambda new, mask: model(new, mask, cache=cache), tokens, mask, end, max_new)


@contextmanager
def writing(model: Model) -> Iterator[None]:
    """The model in evaluation mode, whatever it was before and will be again; it must have words to write."""
    if model.config.head != "language_model":
        raise ValueError(f"the model has head={model.config.head!r}: expected 'language_model', to write with")
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def _within_limit(model: Model, n_given: int, max_new: int) -> int:
    """`max_new`, or fewer where the model's limit comes first."""
    limit = model.config.max_len
    allowed = max_new if limit is None else min(max_new, limit - n_given + 1)
    if max_new < 1 or allowed < 1:
        raise ValueError(f"max_new={max_new} after {n_given} tokens: expected at least 1, within max_len={limit}")
    return allowed


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
