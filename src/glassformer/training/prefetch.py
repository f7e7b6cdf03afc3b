"""Prepare the batches of the next update in a background thread, while the device computes the current one."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar

import torch

AnyBatch = TypeVar("AnyBatch")
AnyBatch_co = TypeVar("AnyBatch_co", covariant=True)

GetBatches = Callable[[Sequence[int]], list[list[AnyBatch]]]
"""A function that returns the batches of some updates, by the numbers of the updates."""


class _Numbered(Protocol[AnyBatch_co]):
    def __getitem__(self, number: int) -> AnyBatch_co: ...


@contextmanager
def prefetching(
    batches: _Numbered[AnyBatch], device: torch.device
) -> "Iterator[Callable[[Sequence[int]], list[AnyBatch]]]":
    """Context manager that returns a function from numbers to batches; for a GPU, with the next ones prepared."""
    if device.type != "cuda":
        yield lambda numbers: get_batches(batches, numbers)
        return
    prefetcher = Prefetcher(batches.__getitem__, pin=True)
    try:
        yield prefetcher.get
    finally:
        prefetcher.close()


def get_batches(batches: _Numbered[AnyBatch], numbers: Sequence[int]) -> list[AnyBatch]:
    """Return the batches with these numbers."""
    return [batches[number] for number in numbers]


class Prefetcher(Generic[AnyBatch]):
    """Gets numbered batches, and prepares those that probably follow them in a background thread.

    Only that thread calls `get_batch`, because the sources of batches keep the order of an epoch in memory and are not
    made for several threads. The numbers that are asked for decide what is returned, not what was prepared.
    """

    def __init__(self, get_batch: Callable[[int], AnyBatch], *, pin: bool):
        """Create the prefetcher of `get_batch`, which returns the batch of a number.

        `pin` puts tensors into page-locked memory, from which a GPU copies without keeping the CPU waiting.
        """
        self._get_batch = get_batch
        self._pin = pin
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batches")
        self._prepared: dict[int, Future[AnyBatch]] = {}

    def get(self, numbers: Sequence[int]) -> list[AnyBatch]:
        """Return the batches with these numbers, and start to prepare as many that follow the last one."""
        known = self._prepared
        futures = [known.pop(number) if number in known else self._start(number) for number in numbers]
        for future in self._prepared.values():
            future.cancel()
        following = range(numbers[-1] + 1, numbers[-1] + 1 + len(numbers))
        self._prepared = {number: self._start(number) for number in following}
        return [future.result() for future in futures]

    def close(self) -> None:
        """Stop the background thread. Batches that it has prepared are dropped."""
        self._prepared.clear()
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _start(self, number: int) -> Future[AnyBatch]:
        return self._thread.submit(self._prepare, number)

    def _prepare(self, number: int) -> AnyBatch:
        batch = self._get_batch(number)
        return pinned(batch) if self._pin else batch


def pinned(batch: Any) -> Any:
    """Return a batch, or a list of batches, with its tensors in page-locked memory. Batches are named tuples."""
    if isinstance(batch, list):
        return [pinned(one) for one in batch]
    return batch._make(tensor.pin_memory() for tensor in batch) if hasattr(batch, "_make") else batch
