"""Which examples each update is trained on: whole batches, or parts of them while the batch grows.

The batches of a run are numbered (`data_order.py`). A *full update* takes the next `accumulate` batches. While the
batch grows (`--batch-ramp`), several consecutive updates share the batches of one full update: each takes an equal part
of their rows, in order. No example is therefore left out or repeated, and an update's examples have similar lengths.

The number of parts depends on the number of the first update that shares the batches. It is limited, so that every
update has at least one example. The examples of an update are thus a function of the update's number, the ramp and the
data, and a resumed run finds them without a stored state.
"""

from bisect import bisect_right
from typing import Any, Generic, Protocol, Self, TypeVar


class Sliceable(Protocol):
    """Protocol of a batch whose rows can be taken apart."""

    def slice_rows(self, begin: int, end: int) -> Self:
        """Return the examples from `begin` up to, but not including, `end`."""


Batch = TypeVar("Batch", bound=Sliceable)


class Ramp(Protocol):
    """Protocol of the growth of a batch, such as `training/schedules.py`'s `BatchRamp`."""

    @property
    def updates(self) -> int:
        """Number of updates after which all updates are full."""

    def parts_at(self, position: int) -> int:
        """Return the number of updates that share the batches of a full update, if the first is number `position`."""


class UpdateBatches(Generic[Batch]):
    """The batches of each update: `update_batches[n]` is the list for update number n, counted from 0.

    Args:
        batches: The numbered batches: `batches[n]`, and while the batch grows, `batches.n_rows(n)`.
        accumulate: Number of batches of a full update.
        ramp: The growth of the batch; None is none.
    """

    def __init__(self, batches: Any, accumulate: int = 1, ramp: Ramp | None = None):
        self.batches, self.accumulate, self._ramp = batches, accumulate, ramp
        self._starts = [0]
        """Number of the first update of each group, a set of updates that share the batches of one full update."""

    def __getitem__(self, update: int) -> list[Batch]:
        """Return the batches of the update with this number, without empty ones."""
        group, part, parts = self.find(update)
        first = group * self.accumulate
        if parts == 1:
            return [self.batches[first + index] for index in range(self.accumulate)]
        found = []
        for index in range(self.accumulate):
            # The part's place inside this batch, in units of 1/parts of the batch.
            low = max(0, self.accumulate * part - index * parts)
            high = min(parts, self.accumulate * (part + 1) - index * parts)
            if low < high:
                n_rows = self.batches.n_rows(first + index)
                begin, end = n_rows * low // parts, n_rows * high // parts
                if begin < end:
                    found.append(self.batches[first + index].slice_rows(begin, end))
        return found

    def find(self, update: int) -> tuple[int, int, int]:
        """Return the full update whose batches an update shares, the number of its part, and the number of parts."""
        if self._ramp is not None:
            while self._starts[-1] <= min(update, self._ramp.updates - 1):
                self._starts.append(self._starts[-1] + self._n_parts(self._ramp, len(self._starts) - 1))
        if update >= self._starts[-1]:
            return len(self._starts) - 1 + update - self._starts[-1], 0, 1
        group = bisect_right(self._starts, update) - 1
        start = self._starts[group]
        return group, update - start, self._starts[group + 1] - start

    def _n_parts(self, ramp: Ramp, group: int) -> int:
        """Return the number of updates that share the batches of this group, whose start is known."""
        numbers = range(group * self.accumulate, (group + 1) * self.accumulate)
        fewest = min(self.batches.n_rows(number) for number in numbers)
        return max(1, min(ramp.parts_at(self._starts[group]), self.accumulate * fewest))
