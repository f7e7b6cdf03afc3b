"""CUDA graphs: capture a computation once, then launch all of its kernels with one call."""

import gc
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")


class UndoesSteps(Protocol):
    """A cache that can undo the steps of capturing a graph, such as `FixedCache`."""

    def discarding_steps(self) -> AbstractContextManager[None]:
        """Return a context manager that undoes the steps made inside it."""


class CudaGraph:
    """A step that is captured as a CUDA graph on its first call, and replayed on every call.

    The step reads and writes `cache` and `buffers`. Capturing runs it several times; then both are restored. `pool` is
    the memory pool of the graph.
    """

    def __init__(self, compute: Callable[[], Tensor], cache: UndoesSteps, buffers: Sequence[Tensor], pool: Any):
        self._compute = compute
        self._cache, self._buffers = cache, buffers
        self._pool = pool
        self._graph: Any = None
        self._result: Tensor | None = None

    def __call__(self) -> Tensor:
        """Run the step. The result is valid until another graph of the same pool runs."""
        self.prepare()
        self._graph.replay()
        assert self._result is not None
        return self._result

    def prepare(self) -> None:
        """Capture the step, unless it has been captured already."""
        if self._graph is not None:
            return
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch demands a warm-up on a side stream
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                with self._discarding_steps():
                    self._compute()
        torch.cuda.current_stream().wait_stream(stream)
        with self._discarding_steps():
            self._graph, self._result = capture_graph(self._compute, pool=self._pool, device=self._buffers[0].device)

    @contextmanager
    def _discarding_steps(self) -> Iterator[None]:
        """Return a context manager that undoes the steps made inside it, in the cache and in the buffers."""
        before = [buffer.clone() for buffer in self._buffers]
        try:
            with self._cache.discarding_steps():
                yield
        finally:
            for buffer, value in zip(self._buffers, before, strict=True):
                buffer.copy_(value)


class CaptureError(RuntimeError):
    """A computation could not be captured as a CUDA graph. None of its kernels has run."""


def capture_graph(compute: Callable[[], Result], *, pool: Any, device: torch.device) -> tuple[Any, Result]:
    """Capture `compute` as a CUDA graph with memory from `pool`; return the graph and the result of `compute`.

    Meanwhile other threads may use the GPU, such as the one that prepares the next batch in page-locked memory. The
    random state of the device is restored. Raises CaptureError if CUDA or a library that `compute` calls refuses to
    be captured. After such an error, graphs captured earlier no longer follow the device's random generator: discard
    those that draw random numbers.
    """
    stream, state = torch.cuda.current_stream(device), torch.cuda.get_rng_state(device)
    try:
        graph = torch.cuda.CUDAGraph()
        with _COLLECTOR_PAUSE, torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            result = compute()
    except BaseException as error:
        _clean_up(stream, state, pool, device)
        if isinstance(error, RuntimeError):
            # Ending a broken capture raises as well; the first error is the reason.
            raise CaptureError(str(error.__context__ or error)) from error
        raise
    torch.cuda.set_rng_state(state, device)
    return graph, result


class _CollectorPause:
    """Context manager in which Python's garbage collector does not run, for any number of threads.

    It could delete a graph that nothing uses any more, which CUDA forbids during a capture: the capture would fail.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._n_inside, self._was_enabled = 0, False

    def __enter__(self) -> None:
        with self._lock:
            if not self._n_inside:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._n_inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._n_inside -= 1
            if not self._n_inside and self._was_enabled:
                gc.enable()


_COLLECTOR_PAUSE = _CollectorPause()


def _clean_up(stream: Any, state: torch.Tensor, pool: Any, device: torch.device) -> None:
    """Undo what `torch.cuda.graph` leaves behind when ending the capture raises.

    The side stream stays current, the allocator keeps the pool open, and the generator believes that it is still
    captured: every later random number fails with "Offset increment outside graph capture".
    """
    torch.cuda.set_stream(stream)
    index = torch.cuda.current_device() if device.index is None else device.index
    with suppress(RuntimeError):  # already closed if the capture ended normally
        torch._C._cuda_endAllocateToPool(index, pool)
    torch.cuda.default_generators[index].graphsafe_set_state(torch.Generator(device))
    torch.cuda.set_rng_state(state, device)
