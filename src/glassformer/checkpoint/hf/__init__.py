"""Models of HF Transformers: a config and a table of names for each family, and no copied code."""

import difflib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from glassformer.checkpoint.foreign import Tensors
from glassformer.checkpoint.hf import bart, bert, gpt2, llama, t5
from glassformer.checkpoint.hf.tables import Family, TensorMismatchError, needed_rows, to_ours, to_theirs
from glassformer.checkpoint.hf.values import UnsupportedModelError, shown
from glassformer.checkpoint.model_folder import check_sizes, fill_parameters
from glassformer.models import DecoderModel, EncoderDecoderModel, EncoderModel, ModelConfig, build_model
from glassformer.models.unscaled import unscaled

FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (*bert.FAMILIES, *gpt2.FAMILIES, *llama.FAMILIES, *t5.FAMILIES, *bart.FAMILIES)
}
IRRELEVANT = (
    "dropout",
    "attention_dropout",
    "activation_dropout",
    "embedding_dropout",
    "layer_drop",
    "init",
    "init_std",
)
"""Fields that change no answer, and that not every family can express."""
POSITION_FIELDS = {
    "rotary": ("rope_theta",),
    "relative": ("relative_buckets", "relative_max_distance"),
    "sinusoidal": ("sinusoid_halves",),
}
"""Fields that count with one kind of positions alone."""

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
    dtype: torch.dtype = torch.float32,
    adapt: Callable[[ModelConfig], ModelConfig] | None = None,
) -> EncoderModel | DecoderModel | EncoderDecoderModel:
    """The model of a `config.json` and its tensors, in evaluation mode.

    It is built without memory first; then one tensor after the other is read, checked, and takes its place. `adapt`
    may change the config before: give it another head, say; the tensors of the old one are left behind.
    """
    family = family_called(values.get("model_type"))
    whole = family.read_config(values, frozenset(tensors.keys()))
    config = whole if adapt is None else adapt(whole)
    check_sizes(config, [*map(tensors.shape, tensors.keys())])
    with torch.device("meta"):
        model = build_model(config)
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    found = to_ours(family, config, tensors, shapes, known={row.theirs for row in family.table(whole)})
    fill_parameters(model, found, dtype)
    return model.eval()


def export_model(
    model: EncoderModel | DecoderModel | EncoderDecoderModel, family: Family | None = None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The `config.json` and the tensors of a model, as its family writes them.

    A decoder's factor on its token vectors is put into their table: the families that write know none.
    """
    model = unscaled(model) if isinstance(model, DecoderModel) else model
    family = family or family_of(model.config)
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    values = {"model_type": family.model_type, **family.write_config(model.config)}
    return values, to_theirs(family, model.config, parameters)


def family_called(model_type: object) -> Family:
    """The family of this name, or an error that names those there are."""
    if isinstance(model_type, str) and model_type in FAMILIES:
        return FAMILIES[model_type]
    near = difflib.get_close_matches(shown(model_type), FAMILIES, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise UnsupportedModelError(
        f"config.json has model_type={shown(model_type)}{hint}: expected one of {', '.join(FAMILIES)}"
    )


def family_of(config: ModelConfig) -> Family:
    """The first family that can express this model: written and read again, its config is the same."""
    for family in FAMILIES.values():
        if _expresses(family, config):
            return family
    raise UnsupportedModelError(
        "no family of HF's can express this model: expected the shape of " + ", ".join(FAMILIES)
    )


def _expresses(family: Family, config: ModelConfig) -> bool:
    with torch.device("meta"):
        parameters = build_model(config).named_parameters()
    shapes = {name: tuple(parameter.shape) for name, parameter in parameters}
    try:
        names = frozenset(row.theirs for row in needed_rows(family, config, shapes))
        values = {"model_type": family.model_type, **family.write_config(config)}
        again = family.read_config(values, names)
    except (ValueError, KeyError, TypeError):
        return False
    return _essence(again) == _essence(config)


def _essence(config: ModelConfig) -> dict[str, Any]:
    """What decides its answers, with the usual values spelled out."""
    idle = [*IRRELEVANT, *(key for kind, keys in POSITION_FIELDS.items() if kind != config.positions for key in keys)]
    values = {key: value for key, value in config.to_dict().items() if key not in idle}
    spelled = {"n_kv_heads": config.kv_heads, "head_dim": config.head_size, "attention_scale": config.scale}
    spelled |= {"final_norm": config.has_final_norm, "source_vocab_size": config.source_vocab}
    return values | spelled | {"embedding_width": config.table_width, "pooling": config.pool_by}
