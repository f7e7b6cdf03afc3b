"""LoRA adapters in the format of Hugging Face's PEFT: `adapter_config.json` and `adapter_model.safetensors`.

PEFT names an adapter's matrices after the modules of the HF model. One tensor of HF may hold several of our matrices,
such as GPT-2's queries, keys and values; then one adapter of a higher rank holds their adapters side by side.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from glassformer.checkpoint.hf import family_by_type, family_of, rewritten
from glassformer.checkpoint.hf.adapters import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    check_settings,
    read_scale,
)
from glassformer.checkpoint.hf.folder import read_json_table
from glassformer.checkpoint.hf.name_tables import Family, NameRule
from glassformer.checkpoint.hf.values import UnsupportedModelError
from glassformer.checkpoint.model_folder import read_tensors, write_tensors
from glassformer.checkpoint.output_folder import new_folder
from glassformer.checkpoint.safe_files import write_text
from glassformer.models.transformer import Model
from glassformer.training.lora import DEFAULT, AdaptedLinear, LowRank, adapt_layer, adapted_layers

PREFIX = "base_model.model."
"""Prefix of the names of an adapter's tensors."""
TASK_TYPES = {"decoder": "CAUSAL_LM", "encoder_decoder": "SEQ_2_SEQ_LM"}


class AdapterFiles(NamedTuple):
    """An adapter in PEFT's format: the values of `adapter_config.json`, and its tensors."""

    settings: dict[str, Any]
    tensors: dict[str, Tensor]


def adapter_files(
    model: Model, base: Path | str, model_type: str | None = None, *, name: str = DEFAULT
) -> AdapterFiles:
    """Return the adapter `name` of a model in PEFT's format.

    `base` is the path of the base model, which PEFT and Glassformer load the adapter onto. `model_type` is its HF
    family; the default is the first family that can express the model.
    """
    family = adapter_family(model, model_type)
    layers = adapted_layers(model)
    tensors: dict[str, Tensor] = {}
    ranks: dict[str, int] = {}
    rank, scale, is_transposed = 0, 1.0, False
    for module, rule in _modules(family, model):
        parts = [layers.get(part.removesuffix(".weight")) for part in rule.names]
        adapters = [None if part is None or name not in part.adapters else part.adapters[name] for part in parts]
        used = [one for one in adapters if isinstance(one, LowRank)]
        if not used:
            continue
        rank, scale, is_transposed = used[0].down.shape[0], used[0].scale, is_transposed or rule.transposed
        sizes = [_n_rows(model, part) for part in rule.names]
        tensors[f"{PREFIX}{module}.lora_A.weight"] = torch.cat([one.down.detach() for one in used]).cpu().contiguous()
        tensors[f"{PREFIX}{module}.lora_B.weight"] = _side_by_side(adapters, sizes).cpu().contiguous()
        ranks[module] = len(used) * rank
    if not tensors:
        raise ValueError(f"the model has no adapter {name!r}: expected one that was added with --lora-rank")
    wider = {_last(module): count for module, count in ranks.items() if count != rank}
    settings = {
        "peft_type": "LORA",
        "task_type": TASK_TYPES[model.kind],
        "base_model_name_or_path": str(base),
        "r": rank,
        "lora_alpha": _plain(scale * rank),
        "rank_pattern": wider,
        "alpha_pattern": {module: _plain(scale * count) for module, count in wider.items()},
        "target_modules": _targets(ranks, [module for module, _ in _modules(family, model)]),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": is_transposed,
        "inference_mode": True,
    }
    return AdapterFiles(settings, tensors)


def write_adapter(
    folder: Path | str, *, adapter: AdapterFiles, card: str = "", overwrite: bool = False, owner: str = ""
) -> None:
    """Write an adapter folder. `card` is the text of its README.md.

    An existing model folder is replaced only with `overwrite`, or if it has the same `owner` (a training run).
    """
    with new_folder(Path(folder), overwrite=overwrite, owner=owner) as work:
        write_text(work / ADAPTER_CONFIG, json.dumps(adapter.settings, indent=2))
        write_tensors(work / ADAPTER_WEIGHTS, adapter.tensors, {"format": "pt"})
        if card:
            write_text(work / "README.md", card)


def load_adapter(model: Model, folder: Path | str, *, name: str = DEFAULT, model_type: str | None = None) -> None:
    """Put an adapter in PEFT's format on a model under a name, without merging it. `use_adapters` sets its weight.

    Several adapters may be loaded one after the other. `model_type` is as in `adapter_files`. Raises
    UnsupportedModelError for adapters that change anything but the matrices of attention and feed-forward. The model
    does not change if the adapter is refused.
    """
    folder = Path(folder)
    settings, tensors = read_json_table(folder / ADAPTER_CONFIG), read_tensors(folder / ADAPTER_WEIGHTS)
    check_settings(settings)
    rules = dict(_modules(adapter_family(model, model_type), model))
    read, updates = set(), []
    for module, rule in rules.items():
        keys = [f"{PREFIX}{module}.lora_{part}.weight" for part in "AB"]
        if not all(key in tensors for key in keys):
            continue
        read.update(keys)
        down, up = (tensors[key].float() for key in keys)
        scale = read_scale(settings, module, len(down))
        first: Any = model.get_submodule(rule.names[0].removesuffix(".weight"))
        expected = (sum(_n_rows(model, part) for part in rule.names), first.in_features)
        if up.shape[1:] != down.shape[:1] or (len(up), down.shape[1]) != expected:
            raise ValueError(f"the adapter's update of {module} is {(len(up), down.shape[1])}: expected {expected}")
        parts = torch.split(up, [_n_rows(model, part) for part in rule.names])
        updates += [(part, down, rows, scale) for part, rows in zip(rule.names, parts, strict=True)]
    if not rules:
        raise UnsupportedModelError(
            f"{folder}: an adapter needs float matrices, and those of this model are quantized: expected a model that "
            "was loaded with dtype='float32' and without quantize"
        )
    if unread := sorted(tensors.keys() - read):
        raise UnsupportedModelError(
            f"{folder}: the adapter has the tensor {unread[0][:200]}, which belongs to no linear layer of this model"
        )
    for part, down, up, scale in updates:
        _add(model, part.removesuffix(".weight"), name, down, up, scale)


def _add(model: Model, layer_name: str, name: str, down: Tensor, up: Tensor, scale: float) -> None:
    layer = adapt_layer(model, layer_name)
    adapter = LowRank(layer.in_features, layer.out_features, len(down), scale, like=down)
    adapter.down, adapter.up = nn.Parameter(down.clone()), nn.Parameter(up.clone())
    layer.adapters[name] = adapter.to(next(model.parameters()).device)


def adapter_family(model: Model, model_type: str | None) -> Family:
    """Return the HF family that names the matrices of an adapter. `model_type` is as in `adapter_files`.

    Raises UnsupportedModelError if the family has other matrices than the model.
    """
    family = family_of(model.config) if model_type is None else family_by_type(model_type)
    if rewritten(family, model.config) != model.config:
        raise UnsupportedModelError(
            f"HF's {family.model_type} expresses this model by other matrices, which the adapter does not fit: "
            "expected --lora-save merged"
        )
    return family


def _modules(family: Family, model: Model) -> Iterator[tuple[str, NameRule]]:
    """Yield the name of each HF module with a matrix of attention or feed-forward, and its rule."""
    for rule in family.table(model.config):
        if rule.hf_name.endswith(".weight") and all(_is_layer(model, part) for part in rule.names):
            yield rule.hf_name.removesuffix(".weight"), rule


def _is_layer(model: Model, parameter: str) -> bool:
    """Whether a parameter is the matrix of a linear layer in the stacks, adapted or not."""
    name = parameter.removesuffix(".weight")
    if name == parameter or ".layers." not in f".{name}":
        return False
    try:
        return isinstance(model.get_submodule(name), nn.Linear | AdaptedLinear)
    except AttributeError:
        return False


def _n_rows(model: Model, parameter: str) -> int:
    layer: Any = model.get_submodule(parameter.removesuffix(".weight"))
    found: int = layer.out_features
    return found


def _side_by_side(adapters: list[Any], sizes: list[int]) -> Tensor:
    """Return the `up` matrices of the parts of one HF tensor: each in its own rows and columns, zeros elsewhere."""
    blocks, before = [], 0
    total = sum(one.up.shape[1] for one in adapters if one is not None)
    for one, n_rows in zip(adapters, sizes, strict=True):
        block = torch.zeros(n_rows, total)
        if one is not None:
            block[:, before : before + one.up.shape[1]] = one.up.detach().float().cpu()
            before += one.up.shape[1]
        blocks.append(block)
    return torch.cat(blocks)


def _targets(ranks: Mapping[str, int], modules: list[str]) -> list[str]:
    """Return PEFT's `target_modules`: the last parts of names if they name exactly the adapted modules, else all."""
    ends = {_last(module) for module in ranks}
    if {module for module in modules if _last(module) in ends} == ranks.keys():
        return sorted(ends)
    return sorted(ranks)


def _last(module: str) -> str:
    return module.rpartition(".")[2]


def _plain(value: float) -> float | int:
    return int(value) if value == int(value) else value
