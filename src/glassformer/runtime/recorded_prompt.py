"""Read short prompts of one shape on a GPU as a CUDA graph.

Reading a short prompt takes a GPU less than a millisecond, while Python launches the kernels of all layers for five or
more. `recorded_reading.py` does the same for the batching engine.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from glassformer.runtime.cuda_graphs import CaptureError
from glassformer.runtime.fixed_cache import FixedCache

MAX_PROMPT_TOKENS = 2048
"""The most tokens of a recorded pass, over all rows. Longer passes keep a GPU busy anyway."""


class RecordedPrompt:
    """A recorded pass over prompts of `length` tokens, with left padding if `has_mask`, into an empty cache.

    Args:
        make_reader: Returns the pass to record, from tokens (N, T), the cache, and a mask, which is False at padding.
        record: Records it: `Recording.record`.
    """

    def __init__(
        self,
        cache: FixedCache,
        make_reader: Callable[[Tensor, FixedCache, Tensor | None], Callable[[], Tensor]],
        record: Callable[..., Callable[[], Tensor]],
        length: int,
        has_mask: bool,
    ):
        sizes: dict[str, Any] = {"size": (cache.batch_size, length), "device": cache.real.device}
        self._cache = cache
        self._tokens = torch.zeros(**sizes, dtype=torch.long)
        self._mask = torch.ones(**sizes, dtype=torch.bool) if has_mask else None
        self._plain = make_reader(self._tokens, cache, self._mask)
        self._recorded = record(self._plain)
        self._can_capture = True

    def __call__(self, tokens: Tensor, mask: Tensor | None) -> Tensor:
        """Read prompts (N, T) and return the logits (N, V) of the next tokens."""
        self._tokens.copy_(tokens)
        if self._mask is not None and mask is not None:
            self._mask.copy_(mask)
        try:
            # Copied, because later steps write over what a graph returns.
            scores = self._recorded().clone() if self._can_capture else self._plain()
        except CaptureError:  # such as that of a layer that asks how many tokens it gets
            self._can_capture = False
            return self._plain()
        if self._can_capture:  # a replayed pass runs no Python
            self._cache.length, self._cache.has_padding = tokens.shape[1], mask is not None
        return scores
