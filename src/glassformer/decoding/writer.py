"""A model in the middle of writing: the rows of a batch, their cache, and the step that brings all of them on."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import pad

from glassformer.models import DecoderModel, EncoderDecoderModel, Model
from glassformer.nn import KVCache

TextModel = DecoderModel | EncoderDecoderModel


class Feeder(Protocol):
    """Makes greedy steps by itself, each from what the last one chose."""

    bias: Tensor
    """(V,), added to the scores before one is chosen."""
    most: int
    """How many steps it makes at once."""

    def feed(self, steps: int) -> Tensor:
        """So many steps: (steps, 2, N or more rows) of the best score, and the token it belongs to; good until the next
        steps."""


class Writer:
    """New tokens in, scores of the next one out, whichever kind of model writes."""

    def __init__(
        self,
        model: TextModel,
        cache: KVCache,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ):
        if not cache.counts_real_tokens:  # a text must not depend on the padding of its batch
            cache.counts_real_tokens = True
        self.model = model
        self.cache = cache
        self.memory = memory
        self.memory_mask = memory_mask

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.cache.real.device

    @property
    def can_run_ahead(self) -> bool:
        """Whether a step may be asked for before the last one's tokens are known: there is room, and it saves time."""
        return False

    def feeder(self, tokens: Tensor) -> Feeder | None:
        """Who goes on from `tokens` (N, 1) greedily without being asked for each step, where that saves time."""
        return None

    def step(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Read `tokens` (N, T), False in `mask` where a row is padded on the left; scores (N, V) of what follows."""
        if isinstance(self.model, DecoderModel):
            hidden = self.model.decode(tokens, mask, cache=self.cache)
        else:
            assert self.memory is not None
            # The base class's method: the documents' `Transformer.decode` takes four-dimensional masks.
            hidden = EncoderDecoderModel.decode(
                self.model, tokens, self.memory, self.memory_mask, mask, cache=self.cache
            )
        # The head is the widest layer: only the last position needs it.
        scores = self.model.apply_head(hidden[:, -1:])[:, 0]
        return scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores

    def reorder(self, rows: Tensor, memories: Tensor | None = None) -> None:
        """Row i becomes what row `rows[i]` was; fewer rows make a smaller batch.

        Where rows share memories, `memories` says which of these are left, if some are not.
        """
        if memories is None and self.memory is not None and len(self.memory) == self.cache.batch_size:
            memories = rows
        self.cache.reorder(rows, memories)
        if self.memory is not None and memories is not None:
            # Its values are in the cache since the first step; only its shape is looked at from then on.
            self.memory = self.memory[: len(memories)]
            if self.memory_mask is not None:
                self.memory_mask = self.memory_mask.index_select(0, memories)

    def keep(self, rows: Sequence[int]) -> None:
        """Only these rows go on, in this order."""
        self.reorder(torch.tensor(rows, device=self.device))

    @classmethod
    def joined(cls, parts: "Sequence[Writer]", *, lengths: Sequence[int], capacity: int) -> "Writer":
        """The rows of several writers in one, with room for `capacity` tokens.

        `lengths` is how many real tokens each row has read. What is not real is left behind where it can be.
        """
        cache = KVCache.joined([part.cache for part in parts], lengths=lengths, capacity=capacity)
        memories = [part.memory for part in parts]
        if any(memory is None for memory in memories):
            return cls(parts[0].model, cache)
        longest = cache.memory_length
        rows, masks = [], []
        for part in parts:
            assert part.memory is not None
            mask = part.memory_mask
            if mask is None:
                mask = torch.ones(part.memory.shape[:2], dtype=torch.bool, device=part.device)
            missing = longest - part.memory.shape[1]
            rows.append(pad(part.memory, (0, 0, 0, missing)))
            masks.append(pad(mask, (0, missing), value=False))
        memory_mask = torch.cat(masks)
        return cls(parts[0].model, cache, torch.cat(rows), None if bool(memory_mask.all()) else memory_mask)


def modules_of(model: Module) -> list[Module]:
    """All of them, some twice: asked for before each batch, so by the shortest way."""
    found = [model]
    for module in found:
        found.extend(child for child in module._modules.values() if child is not None)
    return found


@contextmanager
def writing(model: Model) -> Iterator[None]:
    """The model in evaluation mode, whatever it was before and will be again; it must have words to write."""
    if model.config.head != "language_model":
        raise ValueError(f"the model has head={model.config.head!r}: expected 'language_model', to write with")
    # Only what changes is touched: most models are ready, and to tell each of hundreds of modules takes milliseconds.
    training = [module for module in modules_of(model) if module.training]
    try:
        for module in training:
            module.training = False
        with torch.inference_mode():
            yield
    finally:
        for module in training:
            module.training = True


def room_for(model: Model, n_given: int, max_new_tokens: int) -> int:
    """`max_new_tokens`, or fewer where the model's limit comes first."""
    limit = model.config.max_len
    allowed = max_new_tokens if limit is None else min(max_new_tokens, limit - n_given + 1)
    if allowed < 1:
        raise ValueError(f"{n_given} tokens are given: expected at most max_len={limit}, so that one can be written")
    return allowed
