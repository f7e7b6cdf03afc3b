"""The plain way to compute decoding steps: new tokens in, logits of the next ones out, with a key-value cache."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import Module

from glassformer.models import DecoderModel, EncoderDecoderModel, Model
from glassformer.nn import KVCache
from glassformer.nn.masks import pick
from glassformer.runtime.cudnn_attention import attention_for_prompt, without_cudnn

TextModel = DecoderModel | EncoderDecoderModel

MIN_PICKED = {"cuda": 4096, "cpu": 2}
"""From how many tokens, over all rows, the last layer computes only those whose output is wanted.

For fewer tokens, to choose them takes a GPU longer than the rest of the layer. Other devices have no such rule.
"""


class StepRunner:
    """Computes decoding steps for a batch of sequences (rows), with a key-value cache.

    For an encoder-decoder `memory` is the encoder output and `memory_mask` is False at its padding.
    """

    def __init__(
        self,
        model: TextModel,
        cache: KVCache,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ):
        if not cache.counts_real_tokens:  # results must not depend on the padding of the batch
            cache.counts_real_tokens = True
        self.model = model
        self.cache = cache
        self.memory = memory
        self.memory_mask = memory_mask

    @property
    def device(self) -> torch.device:
        """The device of the cache, which is the model's."""
        return self.cache.real.device

    @property
    def can_run_ahead(self) -> bool:
        """Whether the caller may launch the next step before it reads the tokens of this one. Not with plain steps."""
        return False

    def step(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Feed `tokens` (N, T) and return the logits (N, V) of the next token. `mask` is False at left padding."""
        scores = self.logits(tokens, mask)
        return scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores

    def logits(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return what `step` returns, in the dtype of the model."""
        if isinstance(self.model, DecoderModel):
            hidden = decode_at(self.model, tokens, mask, wanted=None, cache=self.cache)
        else:
            assert self.memory is not None
            # The base class's method, because the documents' `Transformer.decode` takes four-dimensional masks.
            hidden = EncoderDecoderModel.decode(
                self.model, tokens, self.memory, self.memory_mask, mask, cache=self.cache
            )[:, -1:]
        # The head is the widest layer: it gets the last position only.
        return self.model.apply_head(hidden)[:, 0]

    def prefill(self, tokens: Tensor, mask: Tensor | None = None, *, copies: int = 1) -> Tensor:
        """Make the first step: read the prompts (B, T) and return the logits (B·copies, V) of the next token.

        A decoder reads each prompt once, whatever the number of its beams or samples, `copies`. Then the prompt's keys
        and values are copied to their rows, which are next to each other. The prompt of an encoder-decoder is a single
        token, which every row reads. `mask` is False at left padding.
        """
        with attention_for_prompt(tokens.shape[1]):
            return self._prefill(tokens, mask, copies)

    def _prefill(self, tokens: Tensor, mask: Tensor | None, copies: int) -> Tensor:
        if self.memory is None and len(tokens) < self.cache.batch_size:
            prompts = self.cache.first_rows(len(tokens))
            scores = StepRunner(self.model, prompts).step(tokens, mask)
            self.cache.repeat_rows(prompts, copies)
            return scores if copies == 1 else scores.repeat_interleave(copies, 0)
        if copies > 1:
            tokens = tokens.repeat_interleave(copies, 0)
            mask = None if mask is None else mask.repeat_interleave(copies, 0)
        return self.step(tokens, mask)

    def reorder(self, rows: Tensor, memories: Tensor | None = None) -> None:
        """Make row i a copy of row `rows[i]`. Fewer rows shrink the batch.

        Where rows share encoder outputs, `memories` holds the indices of the encoder outputs to keep; None keeps all.
        """
        if memories is None and self.memory is not None and len(self.memory) == self.cache.batch_size:
            memories = rows
        self.cache.reorder(rows, memories)
        if self.memory is not None and memories is not None:
            # Its keys and values are cached since the first step; from then on only its shape matters.
            self.memory = self.memory[: len(memories)]
            if self.memory_mask is not None:
                self.memory_mask = self.memory_mask.index_select(0, memories)

    def keep(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order."""
        self.reorder(torch.tensor(rows, device=self.device))


def decode_at(
    model: DecoderModel, tokens: Tensor, mask: Tensor | None = None, *, wanted: Tensor | None, cache: KVCache
) -> Tensor:
    """Return the last hidden states (N, 1, C) of the tokens at places `wanted` (N,) of `tokens` (N, T).

    None means the last place. If it saves time, the last layer computes no other tokens.
    """
    n_rows, length = tokens.shape
    can_pick = type(model).decode is DecoderModel.decode  # a class of the caller's may not know `wanted`
    if can_pick and length > 1 and tokens.numel() >= MIN_PICKED.get(tokens.device.type, math.inf):
        wanted = torch.full((n_rows,), length - 1, device=tokens.device) if wanted is None else wanted
        return model.decode(tokens, mask, cache=cache, wanted=wanted)
    hidden = model.decode(tokens, mask, cache=cache)
    return hidden[:, -1:] if wanted is None else pick(hidden, wanted)


def modules_of(model: Module) -> list[Module]:
    """Return all modules of a model, shared ones repeatedly. This is faster than `Module.modules`."""
    found = [model]
    for module in found:
        if module._modules:
            found += [child for child in module._modules.values() if child is not None]
    return found


@contextmanager
def inference(model: Model) -> Iterator[None]:
    """Return a context manager that puts a language model into eval and inference mode, and restores its mode."""
    if model.config.head != "language_model":
        raise ValueError(f"the model has head={model.config.head!r}: expected 'language_model', which predicts tokens")
    # Most models are in eval mode already, and `model.eval()` takes milliseconds for hundreds of modules.
    training = [module for module in modules_of(model) if module.training]
    try:
        for module in training:
            module.training = False
        with torch.inference_mode(), without_cudnn():
            yield
    finally:
        for module in training:
            module.training = True


def limit_new_tokens(model: Model, n_given: int, max_new_tokens: int) -> int:
    """Return `max_new_tokens`, or fewer if the model reaches its `max_len` first, after `n_given` tokens.

    Raises ValueError if no new token is possible.
    """
    limit = model.config.max_len
    allowed = max_new_tokens if limit is None else min(max_new_tokens, limit - n_given + 1)
    if allowed < 1:
        raise ValueError(f"the input has {n_given} tokens: expected at most max_len={limit}")
    return allowed
