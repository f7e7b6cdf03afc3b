"""Tables of names: each tensor of a foreign checkpoint, and the parameter of ours that it is. They work both ways."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from glassformer.checkpoint.foreign import Tensors
from glassformer.models import ModelConfig

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Row:
    """One tensor of theirs, and ours; or several of ours that stand in it one after the other."""

    theirs: str
    ours: tuple[str, ...]
    transposed: bool = False
    """Theirs is (in, out), as in GPT-2, instead of (out, in)."""
    wrapped: bool = False
    """Theirs has one dimension of size 1 before the others."""

    def their_shape(self, shapes: Shapes) -> tuple[int, ...]:
        """What their tensor must be like, for our parameters of these shapes."""
        rest = shapes[self.ours[0]][1:]
        shape = (sum(shapes[name][0] for name in self.ours), *rest)
        shape = shape[::-1] if self.transposed else shape
        return (1, *shape) if self.wrapped else shape

    def split(self, tensor: Tensor, shapes: Shapes) -> dict[str, Tensor]:
        """Our parameters, from their tensor; views of it where they can be."""
        tensor = tensor[0] if self.wrapped else tensor
        tensor = tensor.T if self.transposed else tensor
        parts = torch.split(tensor, [shapes[name][0] for name in self.ours])
        return dict(zip(self.ours, parts, strict=True))

    def join(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Their tensor, from our parameters."""
        tensor = torch.cat([parameters[name] for name in self.ours]) if self.ours[1:] else parameters[self.ours[0]]
        tensor = tensor.T if self.transposed else tensor
        return (tensor[None] if self.wrapped else tensor).contiguous()


Table = Sequence[Row]


@dataclass(frozen=True, kw_only=True)
class Family:
    """How one kind of model is written elsewhere."""

    model_type: str
    """What `config.json` calls it."""
    prefix: str
    """Before the names of the body, where a head stands on it; a body saved alone has none."""
    read_config: Callable[[Mapping[str, Any], "frozenset[str]"], ModelConfig]
    """From the values of `config.json` and the names of all tensors to our config."""
    write_config: Callable[[ModelConfig], dict[str, Any]]
    """The values of `config.json`, `architectures` included."""
    table: Callable[[ModelConfig], list[Row]]
    unused: str = r"(?!)"
    """Tensors that may be in a file and say nothing: tables that are computed, copies of a tied one (a pattern)."""


class TensorMismatchError(ValueError):
    """A checkpoint's tensors are not those its config asks for."""


def rows(pairs: Mapping[str, str]) -> Iterator[Row]:
    """A row for each weight and bias of these modules, ours -> theirs. What a model does not have is not looked for."""
    for ours, theirs in pairs.items():
        for kind in ("weight", "bias"):
            yield Row(f"{theirs}.{kind}", (f"{ours}.{kind}",))


def layer_rows(ours: str, theirs: str, n_layers: int, pairs: Mapping[str, str]) -> Iterator[Row]:
    """The same for every layer of a stack: `decoder.layers` and `model.layers`, say."""
    for index in range(n_layers):
        named = {f"{ours}.{index}.{name}": f"{theirs}.{index}.{other}" for name, other in pairs.items()}
        yield from rows(named)


def needed_rows(family: Family, config: ModelConfig, shapes: Shapes) -> list[Row]:
    """The rows that a model of this config has parameters for; each of its parameters must be in one."""
    chosen = [row for row in family.table(config) if row.ours[0] in shapes]
    known = {name for row in chosen for name in row.ours}
    strange = sorted(shapes.keys() - known)
    if strange:
        raise ValueError(
            f"{family.model_type} has no place for {strange[:5]}: expected a config that this family can express"
        )
    return chosen


def to_ours(
    family: Family, config: ModelConfig, tensors: Tensors, shapes: Shapes, *, known: Collection[str] = ()
) -> Iterator[tuple[str, Tensor]]:
    """Our parameters one after the other, each read when its turn comes; every name and shape is checked first.

    Tensors that are `known` may be there without a use: those of a head that was taken off.
    """
    names = frozenset(tensors.keys())
    table = [_named(row, family, names) for row in needed_rows(family, config, shapes)]
    missing = sorted(row.theirs for row in table if row.theirs not in names)
    unexpected = sorted(names - {row.theirs for row in table})
    unexpected = [name for name in unexpected if name not in known and not re.search(family.unused, name)]
    wrong = [
        f"{row.theirs} is {tensors.shape(row.theirs)}, expected {row.their_shape(shapes)}"
        for row in table
        if row.theirs in names and tensors.shape(row.theirs) != row.their_shape(shapes)
    ]
    if missing or unexpected or wrong:
        raise TensorMismatchError("; ".join(_complaints(missing, unexpected, wrong)))
    for row in table:
        yield from row.split(tensors[row.theirs], shapes).items()


def to_theirs(family: Family, config: ModelConfig, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Their tensors, from our parameters."""
    shapes = {name: tuple(value.shape) for name, value in parameters.items()}
    prefix = family.prefix if config.head == "none" else ""
    return {row.theirs.removeprefix(prefix): row.join(parameters) for row in needed_rows(family, config, shapes)}


def _named(row: Row, family: Family, names: frozenset[str]) -> Row:
    """The row as this file writes it: a body that was saved alone has no prefix."""
    if any(name.startswith(family.prefix) for name in names) or not row.theirs.startswith(family.prefix):
        return row
    return Row(row.theirs.removeprefix(family.prefix), row.ours, row.transposed, row.wrapped)


def _complaints(missing: list[str], unexpected: list[str], wrong: list[str]) -> Iterator[str]:
    for what, found in (("missing", missing), ("unexpected", unexpected), ("of a wrong shape", wrong)):
        if found:
            more = f" and {len(found) - 5} more" if len(found) > 5 else ""
            yield f"{len(found)} tensors are {what}: {', '.join(found[:5])}{more}"
