"""A step that is recorded once on a CPU and replayed for any number of rows.

`cpu_graphs.py` replays a step with the very tensors of its recording, so their shapes are fixed. But a batch shrinks
whenever a text ends. Here the step is recorded twice, with two numbers of rows. What differs between the recordings
depends on the number of rows; the replay sets these sizes and strides for each number of rows, without another
recording.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from glassformer.runtime.cpu_graphs import Call, OperationRecorder, find_repeated, make_program
from glassformer.runtime.replay_memory import ReplayMemory, address_of


class ResizableGraph:
    """A step that is replayed from C++ for any number of rows up to the largest one that was recorded.

    `make(n)` returns the step for the first n rows of the same tensors. Both recordings run the step; `record` must
    therefore be called where a step that is run twice does no harm.
    """

    def __init__(self, memory: ReplayMemory):
        self._memory = memory
        self._rows = 0
        self._program: Any = None
        self._result: Tensor | None = None

    def record(self, make: Callable[[int], Callable[[], Tensor]], rows: int, fewer: int) -> bool:
        """Record the step for `rows` and for `fewer` rows, and return whether it can be replayed for other numbers.

        It cannot if its operations or their other arguments depend on the number of rows.
        """
        small, small_result = _record(make(fewer))
        large, result = _record(make(rows))
        if len(large) != len(small) or not _are_prefixes(large, small):
            return False
        repeated, _ = find_repeated(large, result)
        # Before the comparison, because tensors to which a list refers would not be moved to the memory.
        program = make_program(large, result, self._memory)
        pairs = [(_values(large[place]), _values(small[place])) for place in repeated]
        varying = find_varying([*pairs, ([result], [small_result])], rows, fewer)
        if varying is None:
            return False
        for tensor, sizes, strides in varying:
            program.vary(tensor, list(map(int, sizes)), list(map(int, strides)))
        self._program, self._result, self._rows = program, result, rows
        return True

    def __call__(self, rows: int) -> Tensor:
        """Run the step for the first `rows` rows. The result is valid until the next call."""
        assert self._result is not None
        self._program.set_rows(rows, self._rows)
        self._program.run()
        return self._result


Varying = tuple[Tensor, list[bool], list[bool]]
"""A tensor, and which of its sizes and strides are proportional to the number of rows."""


def find_varying(pairs: Sequence[tuple[list[Any], list[Any]]], rows: int, fewer: int) -> list[Varying] | None:
    """Return the tensors of a step with `rows` rows that differ in a step with `fewer` rows.

    Each pair has the values of a call in the one step and in the other. Return None if they differ in more than sizes
    and strides that are proportional to the number of rows.
    """
    found: dict[int, Varying] = {}
    for values, others in pairs:
        if len(values) != len(others):
            return None
        for value, other in zip(values, others, strict=True):
            if isinstance(value, Tensor) and isinstance(other, Tensor):
                varying = _compare(value, other, rows, fewer)
                if varying is None:
                    return None
                found[id(value)] = varying
            elif isinstance(value, Tensor) or isinstance(other, Tensor) or value != other:
                return None
    return [varying for varying in found.values() if any(varying[1]) or any(varying[2])]


def _record(step: Callable[[], Tensor]) -> tuple[list[Call], Tensor]:
    """Run a step and return its calls and its result."""
    recorder = OperationRecorder()
    with recorder:
        result = step()
    return recorder.calls, result


def _are_prefixes(large: list[Call], small: list[Call]) -> bool:
    """Return whether the tensors of both recordings begin at the same places, and constants have the same values.

    A constant is a tensor that the step makes from no other tensor. One for more rows may be longer.
    """
    made: set[int] = set()
    for call in large:
        if call.read:
            made |= set(map(address_of, call.results)) - set(map(address_of, call.read))
    for one, two in zip(large, small, strict=True):
        tensors, others = [*one.read, *one.results], [*two.read, *two.results]
        if len(tensors) != len(others):
            return False
        for tensor, other in zip(tensors, others, strict=True):
            if tensor.storage_offset() != other.storage_offset() or tensor.dim() != other.dim():
                return False
            is_constant = address_of(tensor) not in made and address_of(tensor) != address_of(other)
            if is_constant and not tensor[tuple(map(slice, other.shape))].equal(other):
                return False
    return True


def _values(call: Call) -> list[Any]:
    """Return the operation of a call, its arguments and its results, without nesting."""
    return [call.operation, *_flat([call.arguments, call.results])]


def _compare(large: Tensor, small: Tensor, rows: int, fewer: int) -> Varying | None:
    """Return which sizes and strides of a tensor vary with the rows; None if they are not proportional to them."""
    if large.dim() != small.dim() or large.dtype != small.dtype:
        return None
    pairs = [*zip(large.shape, small.shape, strict=True), *zip(large.stride(), small.stride(), strict=True)]
    if any(one != two and one * fewer != two * rows for one, two in pairs):
        return None
    varies = [one != two for one, two in pairs]
    return large, varies[: large.dim()], varies[large.dim() :]


def _flat(values: Any) -> list[Any]:
    """Return the values in nested lists and tuples as one list."""
    if isinstance(values, list | tuple):
        return [one for value in values for one in _flat(value)]
    return [values]
