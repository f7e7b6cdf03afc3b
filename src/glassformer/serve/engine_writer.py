"""Let a pipeline write with the engine of the server, so that the tasks of many clients share one batch."""

import time
from collections.abc import Sequence
from typing import Any

from glassformer.decoding import GenerationConfig
from glassformer.decoding.engine_request import EngineRequest
from glassformer.decoding.open_batch import GeneratedText
from glassformer.serve.compute_thread import ComputeThread, Lane


class EngineWriter:
    """A `Pipeline.writer` that waits for the engine. It is called in a separate thread, not in the event loop.

    `cancel` may be called from any thread: it stops what is being written, and everything that would follow.
    """

    def __init__(self, compute: ComputeThread, lane: Lane, timeout: float):
        self._compute, self._lane = compute, lane
        self._until = time.monotonic() + timeout
        self._requests: list[EngineRequest] = []
        self._is_canceled = False

    def __call__(
        self,
        model: Any,
        inputs: Sequence[list[int]],
        config: GenerationConfig,
        *,
        with_log_probs: bool = False,
        **others: Any,
    ) -> list[list[GeneratedText]]:
        """Return what `decoding.generate` returns. The engine knows the other options of `generate` already."""
        if not inputs:
            return []
        self._requests = self._compute.submit(self._lane, inputs, config, with_log_probs=with_log_probs)
        if self._is_canceled:
            self.cancel()
        for request in self._requests:
            if not request.done.wait(max(self._until - time.monotonic(), 0)):
                self.cancel()
                raise TimeoutError
        if self._is_canceled:
            raise TimeoutError
        for request in self._requests:
            if request.error is not None:
                raise request.error
        return [request.texts for request in self._requests]

    def cancel(self) -> None:
        """Stop writing. No client waits for the result."""
        self._is_canceled = True
        for request in self._requests:
            if not request.is_done:
                request.cancel()
