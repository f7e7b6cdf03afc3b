"""Replay a computation on a CPU without Python, as a CUDA graph does on a GPU.

A decoding step of few rows takes longer in Python than in its matrix products. `CpuGraph` runs the step once, notes the
torch operations that it calls and the tensors that they read and write, and from then on calls the operations from C++
(`kernels/cpp/program.h`). Every tensor keeps its memory, so views need not be made again. Nothing is compiled:
recording takes as long as a few plain steps.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

from glassformer.runtime.replay_memory import ReplayMemory, address_of

FACTORY_ARGUMENTS = ("dtype", "layout", "device", "pin_memory")
"""Arguments that an overload with an output tensor lacks, because that tensor decides them."""


class CpuGraph:
    """A step that is recorded on its first call, and replayed from C++ on every later call.

    The step must read and write the same tensors on every call, and its Python code must not depend on their values.
    The C++ kernels must be loaded. Results are those of the plain step, up to rounding. Several steps may share one
    `memory` for their intermediate results, if the result of one is no longer needed when another runs.
    """

    def __init__(self, compute: Callable[[], Tensor], memory: ReplayMemory | None = None):
        self._compute: Callable[[], Tensor] | None = compute
        self._memory = memory or ReplayMemory()
        self._result: Tensor | None = None
        self._program: Any = None

    def __call__(self) -> Tensor:
        """Run the step. The result is valid until the next call."""
        if self._compute is not None:
            recorder = OperationRecorder()
            with recorder:
                self._result = self._compute()
            self._program = make_program(recorder.calls, self._result, self._memory)
            self._compute = None  # it may refer to the owner of this object
        else:
            self._program.run()
        assert self._result is not None
        return self._result


class Parameter(NamedTuple):
    """A parameter of a torch operation, as its schema describes it."""

    name: str
    kind: str
    """The type in the schema, such as "Tensor" or "float"."""
    default: Any
    is_written: bool
    """Whether the operation changes the argument in place."""


class Call(NamedTuple):
    """A call of a torch operation: its arguments in the order of its schema, and the tensors that it returned."""

    operation: Any
    arguments: list[Any]
    results: list[Tensor]

    @property
    def read(self) -> list[Tensor]:
        """The tensors among the arguments."""
        return _tensors_in(self.arguments)

    @property
    def changed(self) -> list[Tensor]:
        """The arguments that the operation changes in place."""
        parameters = parameters_of(self.operation)
        return [
            tensor
            for parameter, value in zip(parameters, self.arguments, strict=True)
            if parameter.is_written
            for tensor in _tensors_in(value)
        ]


class OperationRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context manager that notes the torch operations that are called in its block."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []
        self._whole: set[Any] = set()  # operations that are not made of others

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False. Otherwise torch imports its compiler, which takes seconds, to keep it away from this class."""
        return False

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in self._whole:
            with self:  # an operation that is made of others: those are noted instead
                found = _product_of_rows(*args) if func is _MATMUL else NotImplemented
                found = func.decompose(*args, **kwargs) if found is NotImplemented else found
            if found is not NotImplemented:
                return found
            self._whole.add(func)
        found = func(*args, **kwargs)
        results = _tensors_in(found)
        self.calls.append(Call(func, _in_order(func, args, kwargs, results), results))
        return found


_MATMUL = torch.ops.aten.matmul.default


def _product_of_rows(rows: Tensor, matrix: Tensor) -> Any:
    """Return rows (..., T, K) times a matrix (K, N), as torch computes it; NotImplemented for other shapes.

    torch's own decomposition imports its symbolic shapes and sympy, which takes most of a second.
    """
    if rows.dim() < 3 or matrix.dim() != 2:
        return NotImplemented
    return torch.mm(rows.reshape(-1, rows.shape[-1]), matrix).view(*rows.shape[:-1], matrix.shape[-1])


def make_program(calls: list[Call], result: Tensor, memory: ReplayMemory) -> Any:
    """Return the calls as a `Program` of the C++ library, which its method `run` repeats.

    `result` is what the caller reads. What the calls compute is moved to `memory`.
    """
    places, used = find_repeated(calls, result)
    kept = [calls[place] for place in places]
    is_used = [[address_of(tensor) in used for tensor in call.results] for call in kept]
    memory.place(calls, kept, result)
    program = torch.classes.glassformer_cpu.Program()
    for call, those in zip(kept, is_used, strict=True):
        _add(program, call, those)
    return program


def find_repeated(calls: list[Call], result: Tensor) -> tuple[list[int], set[int]]:
    """Return the indices of the calls that a replay must repeat, and the addresses of the memory that they use.

    Left out are calls that only return views of their arguments, constants that no call changes, and calls whose
    results are never used.
    """
    changed = {address_of(tensor) for call in calls for tensor in call.changed}
    used, kept = {address_of(result)}, []
    for place in reversed(range(len(calls))):
        call = calls[place]
        read, written = ({address_of(tensor) for tensor in tensors} for tensors in (call.read, call.results))
        is_view = not call.changed and written <= read
        is_constant = not call.read and not written & changed
        if not is_view and not is_constant and (call.changed or written & used):
            kept.append(place)
            used |= read
    return kept[::-1], used


def _add(program: Any, call: Call, is_used: list[bool]) -> None:
    """Append a call to a program, in a form that writes to the tensors that the recorded call returned.

    If the operation cannot, its results are copied to them: those that are used.
    """
    function, values, results = call
    copied: list[Tensor | None] = []
    overload = None if call.changed or len(results) > 1 else _out_overload(function)
    if overload is not None:
        names = {parameter.name for parameter in parameters_of(overload)}
        named = zip(parameters_of(function), values, strict=True)
        kept = [value for parameter, value in named if parameter.name in names]
        function, values = overload, [*kept, *results]
    elif not call.changed:
        copied = [result if is_read else None for result, is_read in zip(results, is_used, strict=True)]
    program.add(function._schema.name, function._schema.overload_name, values, copied)


def _in_order(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], results: list[Tensor]) -> list[Any]:
    """Return all arguments of a call in the order of the operation's schema, defaults included.

    Python converts numbers where floats or tensors are expected; C++ does not, so they are converted here.
    """
    values: list[Any] = []
    for place, parameter in enumerate(parameters_of(func)):
        value = args[place] if place < len(args) else kwargs.get(parameter.name, parameter.default)
        if isinstance(value, torch.memory_format):
            value = None  # C++ takes no such object, and the tensor that is written to decides the format
        elif parameter.kind == "float" and value is not None:
            value = float(value)
        elif parameter.kind == "Tensor" and isinstance(value, int | float):
            is_float = bool(results) and results[0].is_floating_point()
            value = torch.tensor(value, dtype=results[0].dtype if is_float else None)
        values.append(value)
    return values


def _tensors_in(values: Any) -> list[Tensor]:
    """Return the tensors in a value: a tensor, or lists and tuples of tensors and other values."""
    if isinstance(values, Tensor):
        return [values]
    if isinstance(values, list | tuple):
        return [tensor for value in values for tensor in _tensors_in(value)]
    return []


@cache
def parameters_of(operation: Any) -> tuple[Parameter, ...]:
    """Return the parameters of a torch operation."""
    return tuple(
        Parameter(
            each.name, str(each.type), each.default_value, each.alias_info is not None and each.alias_info.is_write
        )
        for each in operation._schema.arguments
    )


@cache
def _out_overload(func: Any) -> Any:
    """Return the overload of an operation that writes its results to given tensors; None if there is none."""
    arguments = [(parameter.name, str(parameter.type)) for parameter in func._schema.arguments]
    fewer = [(name, kind) for name, kind in arguments if name not in FACTORY_ARGUMENTS]
    for name in func.overloadpacket.overloads():
        overload = getattr(func.overloadpacket, name)
        schema = overload._schema.arguments
        given = [(parameter.name, str(parameter.type)) for parameter in schema if not parameter.is_out]
        if given in (arguments, fewer) and len(schema) - len(given) == len(func._schema.returns):
            return overload
    return None
