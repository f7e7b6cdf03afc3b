"""Name tables: they list which parameters of our (Glassformer's) model each tensor of an HF checkpoint holds.

A `Family` (such as Llama or BERT) lists its tensors as `NameRule`s. The same rules load a checkpoint
(`from_hf_tensors`) and save one (`to_hf_tensors`), so that the two directions cannot disagree. A rule covers the main
ways in which checkpoints differ from our models: another name, one tensor for several parameters, another order of
rows, and a transposed matrix. GPT-2 has three of them:

>>> rule = NameRule("h.0.attn.c_attn.weight", ("layers.0.q", "layers.0.k", "layers.0.v"), transposed=True)
>>> shapes = dict.fromkeys(rule.names, (4, 4))  # ours are (out, in)
>>> rule.hf_shape(shapes)
(4, 12)
>>> parameters = {name: torch.randn(4, 4) for name in rule.names}
>>> again = rule.split(rule.join(parameters), shapes)
>>> all(torch.equal(again[name], parameters[name]) for name in rule.names)
True
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from glassformer.checkpoint.external_model import Tensors
from glassformer.checkpoint.hf.equivalent_forms import Rewrite
from glassformer.checkpoint.hf.row_orders import RowOrder
from glassformer.models import Kind, ModelConfig

if TYPE_CHECKING:
    from torch import Tensor

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class NameRule:
    """The rule that the HF tensor `hf_name` holds the parameters `names` of our model, one or several.

    Several parameters are concatenated along the first axis (before transposing), as in GPT-2's fused Q, K and V.
    """

    hf_name: str
    names: tuple[str, ...]
    """The names of our parameters, in the order in which HF concatenates them."""
    transposed: bool = False
    """Whether HF stores the matrix as (in, out), as in GPT-2, instead of (out, in)."""
    leading_axis: bool = False
    """Whether HF's tensor has an extra first axis of size 1."""
    order: RowOrder | None = None
    """The order of HF's rows, if it is not that of our parameters (before transposing)."""
    write_only: bool = False
    """Whether HF's model has this tensor but does not use it: it is written, so that HF finds it, and never read."""

    def hf_shape(self, shapes: Shapes) -> tuple[int, ...]:
        """Return the shape of HF's tensor. `shapes` holds the shapes of our parameters by name."""
        rest = shapes[self.names[0]][1:]
        shape = (sum(shapes[name][0] for name in self.names), *rest)
        shape = shape[::-1] if self.transposed else shape
        return (1, *shape) if self.leading_axis else shape

    def split(self, tensor: Tensor, shapes: Shapes) -> dict[str, Tensor]:
        """Split HF's tensor into one tensor for each of our parameters, a view if possible. Return them by our names.

        `shapes` holds the shapes of our parameters by name.
        """
        tensor = tensor[0] if self.leading_axis else tensor
        tensor = tensor.T if self.transposed else tensor
        tensor = tensor if self.order is None else tensor[self.order.indices(len(tensor))]
        import torch

        parts = torch.split(tensor, [shapes[name][0] for name in self.names])
        return dict(zip(self.names, parts, strict=True))

    def join(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Return HF's tensor, made from our parameters: the inverse of `split`."""
        import torch

        tensor = torch.cat([parameters[name] for name in self.names]) if self.names[1:] else parameters[self.names[0]]
        tensor = tensor if self.order is None else tensor[self.order.indices(len(tensor)).argsort()]
        tensor = tensor.T if self.transposed else tensor
        return (tensor[None] if self.leading_axis else tensor).contiguous()


Table = Sequence[NameRule]


@dataclass(frozen=True, kw_only=True)
class Family:
    """An HF model family, that is, one `model_type`: how its config and its tensor names map to ours."""

    model_type: str
    """The value of `model_type` in `config.json`."""
    kind: Kind
    """Encoder, decoder or encoder-decoder."""
    prefix: str
    """Prefix of tensor names in the body (the model without its head). A body saved without a head has no prefix."""
    read_config: Callable[[Mapping[str, Any], frozenset[str]], ModelConfig]
    """Convert the values of `config.json` to our config. The second argument holds the names of all stored tensors."""
    write_config: Callable[[ModelConfig], dict[str, Any]]
    """Convert our config to the values of `config.json`, including `architectures`."""
    table: Callable[[ModelConfig], list[NameRule]]
    """The name rules of a model of this config. Rules for parameters that the model lacks are skipped."""
    other_prefix: str = ""
    """A prefix that some files have in place of `prefix`."""
    copies: Sequence[tuple[str, str]] = ()
    """(copy, original) names of tied tensors that a file may store twice. Both must then be equal. If a file stores
    only the copy, it is read in place of the original."""
    ties_by_tensors: bool = False
    """Whether the tensors decide what is tied, because the config does not say it: copies that equal their original are
    left out of the names that `read_config` gets."""
    computed: Mapping[str, Callable[[ModelConfig], Tensor]] = field(default_factory=dict)
    """Tensors that follow from the config, such as sinusoidal positions. If a file stores them, it must store these
    values."""
    stores_computed: bool = False
    """Whether HF expects the computed tensors in checkpoints with a head. Without a head it always expects them."""
    rewrites: Sequence[Rewrite] = ()
    """Rewrites to an equivalent model, applied before a model is saved, so that the family can express more models."""
    ignored: str = r"(?!)"
    """Regular expression for stored tensors to ignore, such as buffers."""
    extra_heads: str = r"(?!)"
    """Regular expression for the tensors of heads that our model lacks. They are skipped (see `extra_heads.py`)."""


class TensorMismatchError(ValueError):
    """The checkpoint's tensors do not match its config."""


def module_rules(pairs: Mapping[str, str]) -> Iterator[NameRule]:
    """Yield the rules for the weight and the bias of each module in `pairs`, which maps our names to HF's.

    Rules for a bias that the model lacks do no harm: `needed_rules` drops them.
    """
    for name, hf_name in pairs.items():
        for kind in ("weight", "bias"):
            yield NameRule(f"{hf_name}.{kind}", (f"{name}.{kind}",))


def layer_rules(stack: str, hf_stack: str, n_layers: int, pairs: Mapping[str, str]) -> Iterator[NameRule]:
    """Yield the rules for the modules in `pairs` (our names -> HF's) of every layer.

    `stack` and `hf_stack` name the lists that hold the layers, such as `decoder.layers` and `model.layers`.
    """
    for index in range(n_layers):
        named = {f"{stack}.{index}.{name}": f"{hf_stack}.{index}.{hf_name}" for name, hf_name in pairs.items()}
        yield from module_rules(named)


def needed_rules(family: Family, config: ModelConfig, shapes: Shapes) -> list[NameRule]:
    """Return the family's rules for the parameters that our model has. `shapes` holds their shapes by name.

    Raises ValueError if a parameter has no rule.
    """
    chosen = [rule for rule in family.table(config) if rule.names[0] in shapes]
    known = {name for rule in chosen for name in rule.names}
    unmapped = sorted(shapes.keys() - known)
    if unmapped:
        raise ValueError(
            f"{family.model_type} has no place for {unmapped[:5]}: expected a config that this family can express"
        )
    return chosen


def rules_for_file(family: Family, config: ModelConfig, names: frozenset[str], shapes: Shapes) -> list[NameRule]:
    """Return the `needed_rules` with `hf_name` changed to the names in one file, which holds the tensors `names`.

    A file may leave out the family's prefix. Of two tied tensors it may store only the copy (see `Family.copies`); the
    rule then reads the copy.
    """
    in_file = naming_in_file(family, names)
    rules = [replace(rule, hf_name=in_file(rule.hf_name)) for rule in needed_rules(family, config, shapes)]
    taken = {rule.hf_name for rule in rules}
    pairs = [(in_file(name), in_file(source)) for name, source in family.copies]
    copy_of = {source: name for name, source in pairs if name in names and name not in taken}
    return [
        rule if rule.hf_name in names else replace(rule, hf_name=copy_of.get(rule.hf_name, rule.hf_name))
        for rule in rules
    ]


def naming_in_file(family: Family, names: frozenset[str]) -> Callable[[str], str]:
    """Return the function that maps a family's tensor name to the name in a file that holds the tensors `names`.

    It removes the family's prefix if no tensor of the file has it, or replaces it by the family's other prefix.
    """
    prefix, other = family.prefix, family.other_prefix
    if any(name.startswith(prefix) for name in names):
        return lambda name: name
    new = other if other and any(name.startswith(other) for name in names) else ""
    return lambda name: new + name.removeprefix(prefix) if name.startswith(prefix) else name


def equal_copies(
    family: Family, tensors: Tensors, are_equal: Callable[[Tensors, str, str], bool] | None = None
) -> frozenset[str]:
    """Return the names of the copies (see `Family.copies`) that are stored in addition to an equal original.

    `are_equal(tensors, name, other)` compares two stored tensors; the default uses `torch.equal`.
    """
    are_equal = are_equal or _are_equal
    names = frozenset(tensors.keys())
    in_file = naming_in_file(family, names)
    pairs = [(in_file(name), in_file(source)) for name, source in family.copies]
    return frozenset(name for name, source in pairs if {name, source} <= names and are_equal(tensors, name, source))


def from_hf_tensors(
    family: Family, config: ModelConfig, tensors: Tensors, shapes: Shapes, *, known: Collection[str] = ()
) -> Iterator[tuple[str, Tensor]]:
    """Yield the names and values of our parameters, reading one HF tensor at a time, in the order of `shapes`.

    All names and shapes are checked before the first parameter is yielded. Raises TensorMismatchError for a missing,
    misshapen or unexpected tensor, for a copy that differs from its original (see `Family.copies`), and for a stored
    tensor that differs from the values that HF computes for it (see `Family.computed`).

    Args:
        shapes: The shapes of our parameters by name.
        known: Names of tensors that may be stored without being used, such as those of a head that was removed.
    """
    names = frozenset(tensors.keys())
    all_rules = rules_for_file(family, config, names, shapes)
    used = [rule for rule in all_rules if not rule.write_only]
    missing = missing_names(family, config, names, shapes)
    wrong = [
        f"{rule.hf_name} is {tensors.shape(rule.hf_name)}, expected {rule.hf_shape(shapes)}"
        for rule in used
        if rule.hf_name in names and tensors.shape(rule.hf_name) != rule.hf_shape(shapes)
    ]
    unused = sorted(
        name for name in names - {rule.hf_name for rule in all_rules} - {*known} if not _is_ignored(family, name)
    )
    unexpected, different = _check_unused(family, config, tensors, unused)
    if missing or unexpected or wrong or different:
        raise TensorMismatchError("; ".join(_messages(missing, unexpected, wrong, different)))
    # In the order of the model, its layers are filled one after the other, so that each can be quantized at once.
    place = {name: index for index, name in enumerate(shapes)}
    for rule in sorted(used, key=lambda rule: place[rule.names[0]]):
        yield from rule.split(tensors[rule.hf_name], shapes).items()


def missing_names(family: Family, config: ModelConfig, names: frozenset[str], shapes: Shapes) -> list[str]:
    """Return the HF names of the tensors that a model of this config needs but that are not in the file's `names`."""
    needed = (rule.hf_name for rule in rules_for_file(family, config, names, shapes) if not rule.write_only)
    return sorted({*needed} - names)


def to_hf_tensors(family: Family, config: ModelConfig, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert our parameters to HF's tensors and return them by HF's names.

    Tensors that HF computes from the config, such as sinusoidal positions, are added if HF expects them in the file.
    """
    shapes = {name: tuple(value.shape) for name, value in parameters.items()}
    tensors = {rule.hf_name: rule.join(parameters) for rule in needed_rules(family, config, shapes)}
    if config.head == "none" or family.stores_computed:
        dtype = next(iter(parameters.values())).dtype
        tensors |= {name: compute(config).to(dtype) for name, compute in family.computed.items()}
    if config.head != "none":
        return tensors
    return {name.removeprefix(family.prefix): tensor for name, tensor in tensors.items()}


def _is_ignored(family: Family, name: str) -> bool:
    return re.search(f"{family.ignored}|{family.extra_heads}", name) is not None


def _check_unused(
    family: Family, config: ModelConfig, tensors: Tensors, unused: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Check the tensors that no rule reads, for `from_hf_tensors`.

    Return two lists: the names that the family does not know, and error messages. There is a message for each tied copy
    that differs from its original, and for each stored tensor that differs from the values that HF computes for it.
    """
    names = frozenset(tensors.keys())
    in_file = naming_in_file(family, names)
    copies = [(in_file(name), in_file(source)) for name, source in family.copies if in_file(source) in names]
    computed = {in_file(name): compute for name, compute in family.computed.items()}
    unexpected, different = [], []
    for name in unused:
        sources = [source for copy, source in copies if copy == name]
        if name in computed:
            if not _matches_computed(tensors, name, computed[name], config):
                different.append(
                    f"{name} differs from the sinusoidal positions that {family.model_type} computes: expected them"
                )
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


def _matches_computed(
    tensors: Tensors, name: str, compute: Callable[[ModelConfig], Tensor], config: ModelConfig
) -> bool:
    import torch

    with torch.device("meta"):  # check the shape first: a hostile config may ask for a table of any size
        shape = tuple(compute(config).shape)
    if tensors.shape(name) != shape:
        return False
    stored, expected = tensors[name], compute(config)
    tolerance = 1e-5 if stored.dtype in (torch.float32, torch.float64) else 1e-2
    return torch.allclose(stored.float(), expected.float(), rtol=0, atol=tolerance)


def _messages(missing: list[str], unexpected: list[str], wrong: list[str], different: list[str]) -> Iterator[str]:
    for what, found in (("missing", missing), ("unexpected", unexpected), ("of a wrong shape", wrong)):
        if found:
            more = f" and {len(found) - 5} more" if len(found) > 5 else ""
            yield f"{len(found)} tensors are {what}: {', '.join(found[:5])}{more}"
    yield from different[:5]
