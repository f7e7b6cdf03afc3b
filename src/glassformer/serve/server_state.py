"""The state that the endpoints of a server share: its models, limits, metrics and threads."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from fastapi import Request

from glassformer.inspect.attention_rows import AttentionRows
from glassformer.inspect.whole_outputs import WholeOutputs
from glassformer.serve.compute_thread import ComputeThread
from glassformer.serve.served_models import ModelShelf
from glassformer.serve.server_metrics import ServerMetrics
from glassformer.serve.server_options import BatchOptions, RequestLimits

T = TypeVar("T")
SHORT_PROMPT = 2000
"""Prompts of at most this many characters are prepared in the event loop, as long as few of them are slow."""
SLOW_SECONDS = 0.02
"""Preparing a short prompt for longer than this is slow."""
MAX_SLOW = 16
"""After this many slow prompts, no more are prepared in the event loop."""
TASK_THREADS = 32
"""The most requests for tasks that prepare their texts or wait for the engine at a time."""


class ServerState:
    """The models, limits, metrics and threads of one server.

    Long prompts are tokenized, and their chat templates rendered, in a separate thread, one after the other: they
    take no time from the event loop.
    """

    def __init__(
        self,
        shelf: ModelShelf,
        compute: ComputeThread,
        metrics: ServerMetrics,
        limits: RequestLimits,
        batch: BatchOptions,
    ):
        self.shelf, self.compute, self.metrics, self.limits, self.batch = shelf, compute, metrics, limits, batch
        self.is_ready = False
        self._n_slow = 0
        """How many short prompts took long to prepare. The first of a model does: its chat template is compiled."""
        self.attention_rows, self.whole_outputs = AttentionRows(), WholeOutputs()
        self.scoring = asyncio.Lock()
        """Held while a prompt is scored (`prompt_scores.py`)."""
        self._prompts = ThreadPoolExecutor(1, thread_name_prefix="prompts")
        self._tasks = ThreadPoolExecutor(TASK_THREADS, thread_name_prefix="tasks")
        metrics.watch("waiting_requests", "Requests that wait for a model", self.n_waiting)
        metrics.watch("running_rows", "Texts that are being written", self._n_rows)
        metrics.watch("cache_tokens_used", "Tokens whose keys and values running requests hold", self._n_cached)

    async def prepare(self, function: Callable[..., T], *arguments: Any, n_characters: int | None = None) -> T:
        """Call a function that prepares a prompt: in the event loop if the prompt is short, otherwise in a thread.

        A prompt of at most SHORT_PROMPT `n_characters` takes less time than the thread would take to start on it. After
        MAX_SLOW such prompts that took longer than SLOW_SECONDS, all are prepared in the thread.
        """
        if n_characters is not None and n_characters <= SHORT_PROMPT and self._n_slow < MAX_SLOW:
            begin = time.thread_time()
            try:
                return function(*arguments)
            finally:
                self._n_slow += time.thread_time() - begin > SLOW_SECONDS
        return await asyncio.get_running_loop().run_in_executor(self._prompts, function, *arguments)

    async def run_task(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function that may wait for the engine, outside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._tasks, function, *arguments)

    def n_waiting(self) -> int:
        """Return how many requests and jobs wait."""
        return sum(len(lane.engine._waiting) for lane in self._lanes()) + self.compute.n_jobs

    def is_down(self) -> bool:
        """Return whether the engine of a model has failed, and there is no other one yet."""
        return any(lane.down_until is not None for lane in self._lanes())

    def close(self) -> None:
        """End the threads, after the work that they have begun."""
        self.compute.close()
        self._prompts.shutdown(cancel_futures=True)
        self._tasks.shutdown(wait=False, cancel_futures=True)

    def _n_rows(self) -> int:
        return sum(lane.engine.n_rows for lane in self._lanes())

    def _n_cached(self) -> int:
        return sum(
            len(row.given) + len(row.written)
            for lane in self._lanes()
            for request in list(lane.requests)
            for row in list(request.rows)
            if not request.is_done
        )

    def _lanes(self) -> list[Any]:
        return [model.lane for model in self.shelf.models.values() if model.lane is not None]


def state_of(request: Request) -> ServerState:
    """Return the state that the endpoints of the server share."""
    found: ServerState = request.app.state.server
    return found
