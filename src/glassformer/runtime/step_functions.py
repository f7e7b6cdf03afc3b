"""The functions that recordings record: a decoding step, the first step with its source, the reading of a prompt."""

import weakref
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from glassformer.models import EncoderDecoderModel
from glassformer.nn import KVCache
from glassformer.runtime.compiled_step import CompiledStep, options_for
from glassformer.runtime.fixed_cache import FixedCache
from glassformer.runtime.step_runner import StepRunner, TextModel


class Steps:
    """Makes the functions that a `Recording` records, which read and write fixed buffers.

    With `compile` each function is compiled on its first call.
    """

    def __init__(self, model: TextModel, *, compile: bool, cache_dtype: torch.dtype | None = None):
        self._model = weakref.ref(model)
        self.cache_dtype = cache_dtype
        self._options = options_for(next(model.parameters()).device) if compile else None

    @property
    def are_compiled(self) -> bool:
        """Whether the functions are compiled."""
        return self._options is not None

    def scorer(
        self, tokens: Tensor, cache: KVCache, memory: Tensor | None, mask: Tensor | None
    ) -> Callable[[], Tensor]:
        """Return a function that feeds `tokens` to the model and returns the logits. `memory` is the encoder output."""
        score = partial(self._score, tokens, cache, memory, mask)
        return score if self._options is None else CompiledStep(score, self._options)

    def narrow_scorer(
        self, tokens: Tensor, cache: KVCache, memory: Tensor | None, mask: Tensor | None
    ) -> Callable[[], Tensor]:
        """Return a function like that of `scorer`, whose logits have the dtype of the model. It is not compiled."""
        return partial(self._score, tokens, cache, memory, mask, is_narrow=True)

    def reader(self, tokens: Tensor, cache: FixedCache, mask: Tensor | None) -> Callable[[], Tensor]:
        """Return a function that reads prompts into an empty cache and returns the logits of the next tokens.

        `tokens` (N, T) are the prompts, `mask` is False at their left padding.
        """
        return partial(self._read, tokens, cache, mask)

    def _read(self, tokens: Tensor, cache: FixedCache, mask: Tensor | None) -> Tensor:
        model = self._model()
        assert model is not None
        return StepRunner(model, cache).step(tokens, mask)

    def _score(
        self,
        tokens: Tensor,
        cache: KVCache,
        memory: Tensor | None,
        mask: Tensor | None,
        *,
        is_narrow: bool = False,
    ) -> Tensor:
        model = self._model()
        assert model is not None
        runner = StepRunner(model, cache, memory, mask)
        return runner.logits(tokens) if is_narrow else runner.step(tokens)

    def first_step(
        self, tokens: Tensor, cache: FixedCache, memory: Tensor | None, mask: Tensor | None, source: Tensor | None
    ) -> Callable[[], Tensor]:
        """Return a function that encodes `source` into `memory`, fixes the empty cache and makes the first step."""
        plain = partial(self._encode_and_step, tokens, cache, memory, mask, source)
        if self._options is None:
            return plain
        compiled = CompiledStep(plain, self._options)

        def first_step() -> Tensor:
            if not compiled.is_compiled:
                plain()  # a model creates tables on its first forward, which must not become part of the compiled code
            return compiled()

        return first_step

    def _encode_and_step(
        self, tokens: Tensor, cache: FixedCache, memory: Tensor | None, mask: Tensor | None, source: Tensor | None
    ) -> Tensor:
        model = self._model()
        assert isinstance(model, EncoderDecoderModel)
        assert memory is not None
        assert source is not None
        kernels = cache.kernels if source.is_cuda else None
        memory.copy_(EncoderDecoderModel.encode(model, source, mask, kernels=kernels))
        cache.restart()
        model.store_memory(memory, cache)
        cache.fix()
        return self._score(tokens, cache, memory, mask)
