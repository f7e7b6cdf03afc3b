"""Import and export Hugging Face (HF) Transformers models.

A `Family`, such as BERT or Llama, converts configs and maps tensor names in both directions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from glassformer.base.names import nearest
from glassformer.checkpoint.external_model import Tensors
from glassformer.checkpoint.hf import (
    bart,
    bert,
    deberta,
    gpt2,
    llama,
    modernbert,
    mpnet,
    nomic_bert,
    opt,
    parallel_decoders,
    t5,
)
from glassformer.checkpoint.hf.name_tables import (
    Family,
    TensorMismatchError,
    equal_copies,
    from_hf_tensors,
    missing_names,
    needed_rules,
    rules_for_file,
    to_hf_tensors,
)
from glassformer.checkpoint.hf.other_families import missing_block
from glassformer.checkpoint.hf.values import UnsupportedModelError, read_architecture, shown
from glassformer.checkpoint.layout import check_sizes
from glassformer.checkpoint.limits import blocking_setting, effective_settings
from glassformer.models import ModelConfig
from glassformer.models.costs import shapes_by_name

if TYPE_CHECKING:  # `glassformer info` reads configs without torch
    import torch
    from torch import Tensor

    from glassformer.checkpoint.model_folder import WhenFilled
    from glassformer.models import DecoderModel, EncoderDecoderModel, EncoderModel

    AnyModel = EncoderModel | DecoderModel | EncoderDecoderModel
FAMILIES: dict[str, Family] = {
    family.model_type: family
    for module in (bert, deberta, modernbert, mpnet, nomic_bert, gpt2, llama, opt, parallel_decoders, t5, bart)
    for family in module.FAMILIES
}

CLASS_WEIGHTS = ("classifier.weight", "classifier.out_proj.weight", "score.weight")
"""Names of the matrix of a classification head. It has one row for each class."""

__all__ = [
    "FAMILIES",
    "Family",
    "TensorMismatchError",
    "UnsupportedModelError",
    "export_model",
    "family_of",
    "import_model",
    "with_model_type",
]


def import_model(
    values: Mapping[str, Any],
    tensors: Tensors,
    *,
    dtype: torch.dtype | None = None,
    adapt: Callable[[ModelConfig], ModelConfig] | None = None,
    when_filled: WhenFilled | None = None,
) -> AnyModel:
    """Build a model from HF's `config.json` values and tensors, in eval mode.

    The model is built on the meta device, which has shapes but no memory. The names and shapes of the tensors are
    checked; then the tensors are read and converted to `dtype` (default float32) one at a time.

    `adapt` may change the config first, for example to replace the head; the tensors of the old head are then skipped.
    `when_filled` is called with each module as soon as its weights have been read (see `fill_parameters`).
    """
    import torch

    from glassformer.checkpoint.model_folder import fill_parameters
    from glassformer.models.factory import build_on_meta

    family = family_by_type(values.get("model_type"))
    names = frozenset(tensors.keys())
    whole = read_config(values, tensors)
    config = whole if adapt is None else adapt(whole)
    check_sizes(
        config,
        [*map(tensors.shape, tensors.keys())],
        lambda: missing_names(family, config, names, shapes_by_name(config)),
    )
    model = build_on_meta(config).eval()
    known = () if config == whole else _used_names(family, whole, names)
    found = from_hf_tensors(family, config, tensors, _shapes(model), known=known)
    fill_parameters(model, found, dtype or torch.float32, when_filled)
    return model


def read_config(
    values: Mapping[str, Any], tensors: Tensors, are_equal: Callable[[Tensors, str, str], bool] | None = None
) -> ModelConfig:
    """Convert HF's `config.json` values to a `ModelConfig`.

    In some families config.json does not fully say which tensors are tied. Stored tensors that such a family may tie,
    for example the source and target embeddings, then count as tied if they are equal.
    `are_equal(tensors, name, other)` compares two of them; the default uses torch.
    """
    family = family_by_type(values.get("model_type"))
    names = frozenset(tensors.keys())
    hidden = equal_copies(family, tensors, are_equal) if family.ties_by_tensors else frozenset()
    return family.read_config(_with_stored_labels(values, tensors), names - hidden)


def _with_stored_labels(values: Mapping[str, Any], tensors: Tensors) -> Mapping[str, Any]:
    """Return `config.json` values without `id2label` if only `num_labels` fits the stored classification head.

    HF takes the number of classes from `id2label`. In some folders the two disagree, because an edited or old
    config.json lists the default two classes; the stored head decides.
    """
    n_labels, labels = values.get("num_labels"), values.get("id2label")
    if not isinstance(n_labels, int) or not isinstance(labels, Mapping) or len(labels) == n_labels:
        return values
    names = {*tensors.keys()}
    rows = [tensors.shape(name)[:1] for name in CLASS_WEIGHTS if name in names]
    return {**values, "id2label": None} if rows == [(n_labels,)] else values


def export_model(model: AnyModel, family: Family | None = None) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Convert a model to an HF family. Return the values for `config.json`, and the tensors by HF's names.

    The default family is the first that can express the model (`family_of`). If necessary, the model is first rewritten
    in an equivalent form that the family can express. Raises UnsupportedModelError if there is no such form.
    """
    family = family or family_of(model.config)
    lost = blocking_settings(family, model.config)
    if lost:
        raise UnsupportedModelError(f"HF's {family.model_type} cannot express {', '.join(lost)}")
    config = model.config
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    for rewrite in family.rewrites:
        changed = rewrite.config(config)
        parameters = parameters if changed == config else rewrite.parameters(config, parameters)
        config = changed
    values = {"model_type": family.model_type, **family.write_config(config)}
    return values, to_hf_tensors(family, config, parameters)


def family_by_type(model_type: object) -> Family:
    """Return the family with this `model_type`. If there is none, the UnsupportedModelError lists all families."""
    if isinstance(model_type, str) and model_type in FAMILIES:
        return FAMILIES[model_type]
    near, what = nearest(model_type, FAMILIES), missing_block(model_type)
    hint = f" (did you mean {near!r}?)" if near else ""
    hint = hint if what is None else f", which has {what}, not supported"
    raise UnsupportedModelError(
        f"config.json has model_type={shown(model_type)}{hint}: expected one of {', '.join(FAMILIES)}"
    )


def with_model_type(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `config.json` values with a `model_type`. If it is missing, it is inferred from `architectures`.

    HF's class names begin with the family: MegatronBertForMaskedLM is of the family megatron-bert. Raises
    UnsupportedModelError if the class belongs to no known family, or if `architectures` is missing, too.
    """
    if values.get("model_type") is not None:
        return values
    name = read_architecture(values)
    base = re.sub(r"(For[A-Z].*|(LMHead|MT|DoubleHeads|WithLMHead)?Model|PreTrainedModel)$", "", name).lower()
    for model_type in FAMILIES:
        if base and base in (re.sub("[-_]", "", model_type), model_type.removesuffix("_text")):
            return {**values, "model_type": model_type}
    known = f"architectures=[{name[:80]!r}], which names no known family" if name else "no architectures"
    raise UnsupportedModelError(
        f"config.json has no model_type and {known}: expected a model_type; add it to config.json, as one of "
        f"{', '.join(FAMILIES)}"
    )


def family_of(config: ModelConfig) -> Family:
    """Return the first HF family that can express this config.

    If none can, raises UnsupportedModelError. The message names the closest family, which has the fewest settings that
    it cannot express, and these settings.
    """
    families = [family for family in FAMILIES.values() if family.kind == config.kind]
    lost: dict[str, list[str]] = {}
    for family in families:
        with suppress(UnsupportedModelError):
            lost[family.model_type] = blocking_settings(family, config)
            if not lost[family.model_type]:
                return family
    nearest = min(lost, key=lambda name: len(lost[name]), default=None)
    reason = "" if nearest is None else f": the closest, {nearest}, cannot express {', '.join(lost[nearest])}"
    tried = ", ".join(family.model_type for family in families)
    raise UnsupportedModelError(
        f"No HF family can express this {config.kind.replace('_', '-')}{reason}. Families tried: {tried}"
    )


def rewritten(family: Family, config: ModelConfig) -> ModelConfig:
    """Apply the family's rewrites to `config`. Return the equivalent config that is saved in its place."""
    for rewrite in family.rewrites:
        config = rewrite.config(config)
    return config


def blocking_settings(family: Family, config: ModelConfig) -> list[str]:
    """Return the settings of `config` that the family cannot express.

    These are the settings that change when the config is converted to HF's values and back. Each is returned with the
    value that it would get: `gated=True (expected False)`.
    """
    if family.kind != config.kind:
        return [f"kind={config.kind!r} (expected {family.kind!r})"]
    config = rewritten(family, config)
    shapes = shapes_by_name(config)
    names = frozenset(rule.hf_name for rule in family.table(config) if rule.names[0] in shapes and not rule.write_only)
    try:
        values = {"model_type": family.model_type, **family.write_config(config)}
        again = effective_settings(family.read_config(values, names))
    except (ValueError, KeyError, TypeError) as error:
        raise UnsupportedModelError(f"HF's {family.model_type} cannot express this model: {error}") from error
    found = [
        blocking_setting(key, value, [again[key]])
        for key, value in effective_settings(config).items()
        if key in again and again[key] != value
    ]
    if not found:
        needed_rules(family, config, shapes)  # raises if a parameter has no rule
    return found


def _shapes(model: AnyModel) -> dict[str, tuple[int, ...]]:
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def _used_names(family: Family, config: ModelConfig, names: frozenset[str]) -> set[str]:
    """Return the names of the tensors that a model of this config reads from a file that holds the tensors `names`."""
    return {rule.hf_name for rule in rules_for_file(family, config, names, shapes_by_name(config))}
