"""Models of HF Transformers: a config and a table of names for each family, and no copied code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from glassformer.base.names import nearest
from glassformer.checkpoint.foreign import Tensors
from glassformer.checkpoint.hf import bart, bert, gpt2, llama, t5
from glassformer.checkpoint.hf.tables import (
    Family,
    Shapes,
    TensorMismatchError,
    equal_copies,
    needed_rows,
    stored_rows,
    to_ours,
    to_theirs,
)
from glassformer.checkpoint.hf.values import UnsupportedModelError, shown
from glassformer.checkpoint.layout import check_sizes
from glassformer.checkpoint.limits import deciding_values
from glassformer.models import ModelConfig

if TYPE_CHECKING:  # `glassformer info` reads configs without torch
    import torch
    from torch import Tensor

    from glassformer.models import DecoderModel, EncoderDecoderModel, EncoderModel

    AnyModel = EncoderModel | DecoderModel | EncoderDecoderModel
FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (*bert.FAMILIES, *gpt2.FAMILIES, *llama.FAMILIES, *t5.FAMILIES, *bart.FAMILIES)
}

__all__ = [
    "FAMILIES",
    "Family",
    "TensorMismatchError",
    "UnsupportedModelError",
    "export_model",
    "family_of",
    "import_model",
]


def import_model(
    values: Mapping[str, Any],
    tensors: Tensors,
    *,
    dtype: torch.dtype | None = None,
    adapt: Callable[[ModelConfig], ModelConfig] | None = None,
) -> AnyModel:
    """The model of a `config.json` and its tensors, in evaluation mode.

    It is built without memory first; then one tensor after the other is read, checked, and takes its place. `adapt`
    may change the config before: give it another head, say; the tensors of the old one are left behind. The numbers
    become `dtype`, which is float32 unless given.
    """
    import torch

    from glassformer.checkpoint.model_folder import fill_parameters

    family = family_called(values.get("model_type"))
    names = frozenset(tensors.keys())
    whole = read_config(values, tensors)
    config = whole if adapt is None else adapt(whole)
    check_sizes(config, [*map(tensors.shape, tensors.keys())])
    model = _without_memory(config)
    known = () if config == whole else _used_names(family, whole, names)
    found = to_ours(family, config, tensors, _shapes(model), known=known)
    fill_parameters(model, found, dtype or torch.float32)
    return model.eval()


def read_config(
    values: Mapping[str, Any], tensors: Tensors, are_equal: Callable[[Tensors, str, str], bool] | None = None
) -> ModelConfig:
    """Our config of a `config.json` and the tensors that go with it; `are_equal` compares two of these."""
    family = family_called(values.get("model_type"))
    names = frozenset(tensors.keys())
    hidden = equal_copies(family, tensors, are_equal) if family.ties_by_tensors else frozenset()
    return family.read_config(values, names - hidden)


def export_model(model: AnyModel, family: Family | None = None) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The `config.json` and the tensors of a model, as its family writes them.

    A decoder's factor on its token vectors is put into their table: the families that write know none.
    """
    from glassformer.models import DecoderModel
    from glassformer.models.unscaled import unscaled

    model = unscaled(model) if isinstance(model, DecoderModel) else model
    family = family or family_of(model.config)
    lost = _lost_fields(family, model.config, _shapes(model))
    if lost:
        raise UnsupportedModelError(f"HF's {family.model_type} cannot express {', '.join(lost)}")
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    values = {"model_type": family.model_type, **family.write_config(model.config)}
    return values, to_theirs(family, model.config, parameters)


def family_called(model_type: object) -> Family:
    """The family of this name, or an error that names those there are."""
    if isinstance(model_type, str) and model_type in FAMILIES:
        return FAMILIES[model_type]
    near = nearest(model_type, FAMILIES)
    hint = f" (did you mean {near!r}?)" if near else ""
    raise UnsupportedModelError(
        f"config.json has model_type={shown(model_type)}{hint}: expected one of {', '.join(FAMILIES)}"
    )


def family_of(config: ModelConfig) -> Family:
    """The first family that can express this model: written and read again, its config is the same."""
    lost: dict[str, list[str]] = {}
    shapes = _shapes(_without_memory(config))
    for name, family in FAMILIES.items():
        with suppress(UnsupportedModelError):
            lost[name] = _lost_fields(family, config, shapes)
            if not lost[name]:
                return family
    nearest = min(lost, key=lambda name: len(lost[name]), default=None)
    reason = "" if nearest is None else f"; the nearest, {nearest}, cannot express {', '.join(lost[nearest])}"
    raise UnsupportedModelError(
        f"no family of HF's can express this model: expected the shape of {', '.join(FAMILIES)}{reason}"
    )


def _lost_fields(family: Family, config: ModelConfig, shapes: Shapes) -> list[str]:
    """The fields that have other values when a family has written this config and read it again."""
    try:
        rows = needed_rows(family, config, shapes)
        names = frozenset(row.theirs for row in rows if not row.is_unread)
        values = {"model_type": family.model_type, **family.write_config(config)}
        again = deciding_values(family.read_config(values, names))
    except (ValueError, KeyError, TypeError) as error:
        raise UnsupportedModelError(f"HF's {family.model_type} cannot express this model: {error}") from error
    return [f"{key}={value!r}" for key, value in deciding_values(config).items() if again.get(key, value) != value]


def _without_memory(config: ModelConfig) -> AnyModel:
    import torch

    from glassformer.models import build_model

    with torch.device("meta"):
        return build_model(config)


def _shapes(model: AnyModel) -> dict[str, tuple[int, ...]]:
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def _used_names(family: Family, config: ModelConfig, names: frozenset[str]) -> set[str]:
    """The tensors that a model of this config reads from a file with these names."""
    return {row.theirs for row in stored_rows(family, config, names, _shapes(_without_memory(config)))}
