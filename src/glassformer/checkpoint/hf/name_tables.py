"""Tables of names: each tensor of a foreign checkpoint, and the parameter of ours that it is. They work both ways."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from glassformer.checkpoint.external_model import Tensors
from glassformer.checkpoint.hf.equivalent_forms import Rewrite
from glassformer.models import Kind, ModelConfig

if TYPE_CHECKING:
    from torch import Tensor

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
    is_unread: bool = False
    """HF's model has this tensor and computes nothing with it. It is written, so that HF finds it, and never read."""

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
        import torch

        parts = torch.split(tensor, [shapes[name][0] for name in self.ours])
        return dict(zip(self.ours, parts, strict=True))

    def join(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Their tensor, from our parameters."""
        import torch

        tensor = torch.cat([parameters[name] for name in self.ours]) if self.ours[1:] else parameters[self.ours[0]]
        tensor = tensor.T if self.transposed else tensor
        return (tensor[None] if self.wrapped else tensor).contiguous()


Table = Sequence[Row]


@dataclass(frozen=True, kw_only=True)
class Family:
    """How one kind of model is written elsewhere."""

    model_type: str
    """What `config.json` calls it."""
    kind: Kind
    """Encoder, decoder or encoder-decoder."""
    prefix: str
    """Before the names of the body, where a head stands on it; a body saved alone has none."""
    read_config: Callable[[Mapping[str, Any], frozenset[str]], ModelConfig]
    """From the values of `config.json` and the names of all tensors to our config."""
    write_config: Callable[[ModelConfig], dict[str, Any]]
    """The values of `config.json`, `architectures` included."""
    table: Callable[[ModelConfig], list[Row]]
    copies: Sequence[tuple[str, str]] = ()
    """Tensors that a tied model may store a second time, each with the tensor that it must then be equal to. Where the
    original is not stored, its copy stands for it."""
    ties_by_tensors: bool = False
    """Hide copies that equal their original from `read_config`, because the config alone does not define the ties."""
    computed: Mapping[str, Callable[[ModelConfig], Tensor]] = field(default_factory=dict)
    """Tensors that are computed from the config. A file may store them, with these values."""
    stores_computed: bool = False
    """Whether HF's class with a head expects the computed tensors in the file; a class of a body alone always does."""
    rewrites: Sequence[Rewrite] = ()
    """Exact changes of form that make more of our models expressible, applied before a model is written."""
    unused: str = r"(?!)"
    """Tensors that HF's model reads from no file, or heads beside the one that is asked for (a pattern)."""


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


def stored_rows(family: Family, config: ModelConfig, names: frozenset[str], shapes: Shapes) -> list[Row]:
    """The needed rows under the names that this file uses: without the prefix, or under the name of a copy."""
    place = place_names(family, names)
    rows = [replace(row, theirs=place(row.theirs)) for row in needed_rows(family, config, shapes)]
    taken = {row.theirs for row in rows}
    pairs = [(place(name), place(source)) for name, source in family.copies]
    free = {source: name for name, source in pairs if name in names and name not in taken}
    return [row if row.theirs in names else replace(row, theirs=free.get(row.theirs, row.theirs)) for row in rows]


def place_names(family: Family, names: frozenset[str]) -> Callable[[str], str]:
    """From a family's name of a tensor to this file's: a body that was saved alone has no prefix."""
    has_prefix = any(name.startswith(family.prefix) for name in names)
    return (lambda name: name) if has_prefix else (lambda name: name.removeprefix(family.prefix))


def equal_copies(
    family: Family, tensors: Tensors, are_equal: Callable[[Tensors, str, str], bool] | None = None
) -> frozenset[str]:
    """The stored copies whose original is stored too and is equal, by default by torch."""
    are_equal = are_equal or _are_equal
    names = frozenset(tensors.keys())
    place = place_names(family, names)
    pairs = [(place(name), place(source)) for name, source in family.copies]
    return frozenset(name for name, source in pairs if {name, source} <= names and are_equal(tensors, name, source))


def to_ours(
    family: Family, config: ModelConfig, tensors: Tensors, shapes: Shapes, *, known: Collection[str] = ()
) -> Iterator[tuple[str, Tensor]]:
    """Our parameters one after the other, each read when its turn comes; every name and shape is checked first.

    Tensors that are `known` may be there without a use: those of a head that was taken off. Any other tensor must be
    used, equal to the tensor it copies, or as computed.
    """
    names = frozenset(tensors.keys())
    every = stored_rows(family, config, names, shapes)
    table = [row for row in every if not row.is_unread]
    missing = missing_names(family, config, names, shapes)
    wrong = [
        f"{row.theirs} is {tensors.shape(row.theirs)}, expected {row.their_shape(shapes)}"
        for row in table
        if row.theirs in names and tensors.shape(row.theirs) != row.their_shape(shapes)
    ]
    left = sorted(name for name in names - {row.theirs for row in every} - {*known} if not _is_unused(family, name))
    unexpected, different = _check_left(family, config, tensors, left)
    if missing or unexpected or wrong or different:
        raise TensorMismatchError("; ".join(_complaints(missing, unexpected, wrong, different)))
    for row in table:
        yield from row.split(tensors[row.theirs], shapes).items()


def missing_names(family: Family, config: ModelConfig, names: frozenset[str], shapes: Shapes) -> list[str]:
    """The tensors that a model of this config needs and a file with these names has not."""
    needed = (row.theirs for row in stored_rows(family, config, names, shapes) if not row.is_unread)
    return sorted({*needed} - names)


def to_theirs(family: Family, config: ModelConfig, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Their tensors, from our parameters."""
    shapes = {name: tuple(value.shape) for name, value in parameters.items()}
    tensors = {row.theirs: row.join(parameters) for row in needed_rows(family, config, shapes)}
    if config.head == "none" or family.stores_computed:
        dtype = next(iter(parameters.values())).dtype
        tensors |= {name: compute(config).to(dtype) for name, compute in family.computed.items()}
    if config.head != "none":
        return tensors
    return {name.removeprefix(family.prefix): tensor for name, tensor in tensors.items()}


def _is_unused(family: Family, name: str) -> bool:
    return re.search(family.unused, name) is not None


def _check_left(
    family: Family, config: ModelConfig, tensors: Tensors, left: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Check the tensors that no row reads. Return the unexpected names, and a sentence for each wrong copy."""
    names = frozenset(tensors.keys())
    place = place_names(family, names)
    copies = [(place(name), place(source)) for name, source in family.copies if place(source) in names]
    computed = {place(name): compute for name, compute in family.computed.items()}
    unexpected, different = [], []
    for name in left:
        sources = [source for copy, source in copies if copy == name]
        if name in computed:
            if not _is_near(tensors, name, computed[name], config):
                different.append(f"{name} differs from what {family.model_type} computes: expected its table of waves")
        elif not sources:
            unexpected.append(name)
        for source in sources:
            if not _are_equal(tensors, name, source):
                different.append(
                    f"{name} differs from {source}, and config.json ties them: expected equal tensors, or "
                    "tie_word_embeddings=false"
                )
    return unexpected, different


def _are_equal(tensors: Tensors, name: str, other: str) -> bool:
    import torch

    return tensors.shape(name) == tensors.shape(other) and torch.equal(tensors[name], tensors[other])


def _is_near(tensors: Tensors, name: str, compute: Callable[[ModelConfig], Tensor], config: ModelConfig) -> bool:
    import torch

    with torch.device("meta"):  # the shape first: a config alone could ask for a table of any size
        shape = tuple(compute(config).shape)
    if tensors.shape(name) != shape:
        return False
    stored, expected = tensors[name], compute(config)
    tolerance = 1e-5 if stored.dtype in (torch.float32, torch.float64) else 1e-2
    return torch.allclose(stored.float(), expected.float(), rtol=0, atol=tolerance)


def _complaints(missing: list[str], unexpected: list[str], wrong: list[str], different: list[str]) -> Iterator[str]:
    for what, found in (("missing", missing), ("unexpected", unexpected), ("of a wrong shape", wrong)):
        if found:
            more = f" and {len(found) - 5} more" if len(found) > 5 else ""
            yield f"{len(found)} tensors are {what}: {', '.join(found[:5])}{more}"
    yield from different[:5]
