"""A computation as a CUDA graph: all its kernels are launched at once, as often as one likes."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from glassformer.runtime.fixed_cache import FixedCache
from glassformer.runtime.graph_capture import record


class Graph:
    """What reads and writes a cache and some places, recorded when it is first needed.

    To be recorded it is played a few times, of which nothing stays.
    """

    def __init__(self, compute: Callable[[], Tensor], cache: FixedCache, places: Sequence[Tensor], pool: Any):
        self._compute = compute
        self._cache, self._places = cache, places
        self._pool = pool
        self._graph: Any = None
        self._result: Tensor | None = None

    def __call__(self) -> Tensor:
        """Compute it; what comes out is good until the next one of those that share the pool plays."""
        self.prepare()
        self._graph.replay()
        assert self._result is not None
        return self._result

    def prepare(self) -> None:
        """Record it, if that is still to be done."""
        if self._graph is not None:
            return
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # recording needs what ran on a side stream
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                with self._only_trying():
                    self._compute()
        torch.cuda.current_stream().wait_stream(stream)
        with self._only_trying():
            self._graph, self._result = record(
                self._compute, pool=self._pool, device=self._places[0].device, capture_error_mode="thread_local"
            )

    @contextmanager
    def _only_trying(self) -> Iterator[None]:
        """Steps in here are forgotten."""
        before = [place.clone() for place in self._places]
        try:
            with self._cache.only_trying():
                yield
        finally:
            for place, value in zip(self._places, before, strict=True):
                place.copy_(value)
