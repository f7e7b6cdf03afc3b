"""Memory for the intermediate results of replayed steps, used again as soon as a result is no longer needed.

A recorded step (`cpu_graphs.py`) would otherwise keep every tensor that it computes: tens of megabytes for a hundred
rows, and memory that no CPU cache holds. All steps of a batch share one `ReplayMemory`, because one of them runs at a
time.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

ALIGNMENT = 64
"""Every tensor begins at a multiple of this many bytes, as torch's own allocations do."""


class Repeated(Protocol):
    """A recorded call of a torch operation."""

    @property
    def read(self) -> list[Tensor]:
        """The tensors among the arguments."""

    @property
    def results(self) -> list[Tensor]:
        """The tensors that the operation returned."""


class Lifetime(NamedTuple):
    """The calls between which a tensor's memory is needed: from the one that makes it to the last that reads it."""

    first: int
    last: int
    size: int
    """The size of the memory in bytes."""


class ReplayMemory:
    """A block of memory in which the intermediate results of recorded steps get their places."""

    def __init__(self) -> None:
        self._block = torch.empty(0, dtype=torch.uint8)

    @property
    def nbytes(self) -> int:
        """The size of the block in bytes."""
        return self._block.nbytes

    @torch.inference_mode()
    def place(self, calls: Sequence[Repeated], kept: Sequence[Repeated], result: Tensor) -> None:
        """Move the tensors that the `kept` calls make into this memory. `result` is needed after the last call.

        `calls` are all recorded calls, including those that are not repeated. A tensor that is also held outside the
        recording stays where it is, such as a table that a model makes on its first forward.
        """
        lifetimes = find_lifetimes(kept, result)
        for address in _held_elsewhere(calls, result):
            lifetimes.pop(address, None)
        places, size = choose_places(lifetimes)
        if size > self.nbytes:  # earlier steps keep the smaller block
            self._block = torch.empty(size, dtype=torch.uint8)
        storage, value = self._block.untyped_storage(), result.clone()
        tensors = {id(tensor): tensor for call in kept for tensor in (*call.read, *call.results)}
        for tensor in (tensors | {id(result): result}).values():
            place = places.get(address_of(tensor))
            if place is not None:
                offset = place // tensor.element_size() + tensor.storage_offset()
                tensor.set_(storage, offset, tensor.shape, tensor.stride())
        result.copy_(value)


def address_of(tensor: Tensor) -> int:
    """Return the address of a tensor's memory, which its views share. It is 0 for an empty tensor."""
    return tensor.untyped_storage().data_ptr()


def find_lifetimes(calls: Sequence[Repeated], result: Tensor) -> dict[int, Lifetime]:
    """Return the lifetime of each tensor that the calls make, by the address of its memory.

    Memory that a call reads before any call has made it belongs to the model or the caller.
    """
    lifetimes: dict[int, Lifetime] = {}
    given: set[int] = {0}
    for index, call in enumerate(calls):
        for tensor in call.read:
            address = address_of(tensor)
            if address in lifetimes:
                lifetimes[address] = lifetimes[address]._replace(last=index)
            else:
                given.add(address)
        for tensor in call.results:
            address = address_of(tensor)
            if address not in given:
                first = lifetimes[address].first if address in lifetimes else index
                lifetimes[address] = Lifetime(first, index, tensor.untyped_storage().nbytes())
    if address_of(result) in lifetimes:
        lifetimes[address_of(result)] = lifetimes[address_of(result)]._replace(last=len(calls))
    return lifetimes


def choose_places(lifetimes: dict[int, Lifetime]) -> tuple[dict[int, int], int]:
    """Return a place in bytes for each tensor, by address, and the size of all: no two overlap while both live.

    Each gets the first gap that is large enough, in the order in which they are made.
    """
    places: dict[int, int] = {}
    living: list[tuple[int, int, int]] = []  # begin, end and last call of the places in use
    size = 0
    for address, life in sorted(lifetimes.items(), key=lambda item: item[1].first):
        living = sorted(one for one in living if one[2] >= life.first)
        begin = 0
        for other, end, _ in living:
            if begin + life.size <= other:
                break
            begin = max(begin, -(-end // ALIGNMENT) * ALIGNMENT)
        places[address] = begin
        living.append((begin, begin + life.size, life.last))
        size = max(size, begin + life.size)
    return places, size


def _held_elsewhere(calls: Sequence[Repeated], result: Tensor) -> set[int]:
    """Return the addresses of memory whose tensors are also held outside the recording.

    CPython counts the references to an object. Those of the recorded calls are known; any other is held elsewhere.
    """
    tensors = {id(tensor): tensor for call in calls for tensor in (*call.read, *call.results)}
    known = Counter(id(tensor) for call in calls for tensor in (*call.read, *call.results))
    found = set()
    for key in tensors:
        references = known[key] + 2  # of the calls, of `tensors`, and of the call of `getrefcount`
        if tensors[key] is not result and sys.getrefcount(tensors[key]) > references:
            found.add(address_of(tensors[key]))
    return found
