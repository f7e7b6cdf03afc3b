"""Recording work of the GPU as a CUDA graph, such that a recording that fails leaves torch usable."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")


class CaptureError(RuntimeError):
    """Work that could not be recorded as a CUDA graph. Nothing of it has run."""


def record(compute: Callable[[], Result], *, pool: Any, device: torch.device, **options: Any) -> tuple[Any, Result]:
    """Record `compute` as a CUDA graph that takes its memory from `pool`; the graph, and what `compute` returned.

    The random state of the device is afterwards as before. Raises CaptureError if the device or a library refuses to
    record a part of it. Graphs that were recorded before then draw other random numbers than the device's generator:
    discard those that draw any.
    """
    stream, state = torch.cuda.current_stream(device), torch.cuda.get_rng_state(device)
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, **options):
            result = compute()
    except BaseException as error:
        _clean_up(stream, state, pool, device)
        if isinstance(error, RuntimeError):
            # Ending a broken recording raises too: the first error is the reason.
            raise CaptureError(str(error.__context__ or error)) from error
        raise
    torch.cuda.set_rng_state(state, device)
    return graph, result


def _clean_up(stream: Any, state: torch.Tensor, pool: Any, device: torch.device) -> None:
    """Undo what `torch.cuda.graph` leaves behind where ending the recording raises.

    The side stream stays the current one, the allocator keeps the pool open, and the generator's state believes that
    it is still recorded: every later random number fails with "Offset increment outside graph capture".
    """
    torch.cuda.set_stream(stream)
    index = torch.cuda.current_device() if device.index is None else device.index
    with suppress(RuntimeError):  # it is closed already where the recording ended in order
        torch._C._cuda_endAllocateToPool(index, pool)
    torch.cuda.default_generators[index].graphsafe_set_state(torch.Generator(device))
    torch.cuda.set_rng_state(state, device)
