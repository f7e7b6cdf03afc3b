"""LoRA adapters in PEFT's format, applied to the tensors of their base model as these are read.

`adapter_config.json` has the settings. The adapter's tensors are named after the modules of the base model: the matrix
`base_model.model.M.weight` of the base model gets `scale * (M.lora_B.weight @ M.lora_A.weight)` added. Tensors without
`lora_` in their name replace those of the base model, or are a new head.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from glassformer.checkpoint.external_model import Tensors
from glassformer.checkpoint.hf.values import UnsupportedModelError, read_architecture, read_float, require, shown

if TYPE_CHECKING:
    from torch import Tensor

ADAPTER_CONFIG, ADAPTER_WEIGHTS, ADAPTER_PICKLE = (
    "adapter_config.json",
    "adapter_model.safetensors",
    "adapter_model.bin",
)
PARTS = {
    "lora_A.weight": "down",
    "lora_B.weight": "up",
    "lora_embedding_A": "down",
    "lora_embedding_B": "up",
    "lora_magnitude_vector": "magnitude",
    "lora_magnitude_vector.weight": "magnitude",
}
"""The ends of the names of an adapter's tensors, and the part of an update that each of them is."""
HEAD_CLASSES = {
    "SEQ_CLS": "ForSequenceClassification",
    "TOKEN_CLS": "ForTokenClassification",
    "QUESTION_ANS": "ForQuestionAnswering",
}
"""Ends of the names of HF's classes by PEFT's `task_type`, for tasks whose head the adapter brings."""


@dataclass
class LoraUpdate:
    """The names of the adapter's tensors that change one matrix of the base model, and the factor on their product."""

    scale: float
    is_embedding: bool = False
    parts: dict[str, str] = field(default_factory=dict)
    """The names of the tensors `down` (r, in), `up` (out, r) and, for DoRA, `magnitude` (out,)."""


class AdaptedTensors:
    """Lazy access to the tensors of a base model with an adapter applied (see `Tensors`).

    `settings` is the parsed `adapter_config.json`. `prefix` is the prefix of the family's tensor names in the body,
    which either file may leave out. A head that the adapter brings replaces all heads of the base model.

    Raises UnsupportedModelError for adapters other than LoRA and for tensors whose meaning is not known.
    """

    def __init__(self, base: Tensors, adapter: Tensors, settings: Mapping[str, Any], *, prefix: str):
        check_settings(settings)
        self._base, self._adapter = base, adapter
        self._stored_transposed = settings.get("fan_in_fan_out") is True
        names = frozenset(base.keys())
        has_head = str(settings.get("task_type")) in HEAD_CLASSES
        if has_head and any(name.startswith(prefix) for name in names):
            names = frozenset(name for name in names if name.startswith(prefix))
        self._names = dict.fromkeys(sorted(names))
        self._replaced: dict[str, str] = {}
        self._updates: dict[str, LoraUpdate] = {}
        for name in adapter.keys():  # noqa: SIM118
            self._add(name, settings, prefix, may_be_new=has_head)
        for name, update in self._updates.items():
            if not {"down", "up"} <= update.parts.keys():
                raise UnsupportedModelError(f"the adapter has only one of the two matrices for {name}: expected both")

    def _add(self, name: str, settings: Mapping[str, Any], prefix: str, *, may_be_new: bool) -> None:
        """Sort one tensor of the adapter into the updates or the replaced tensors."""
        plain = name.removeprefix("base_model.model.").replace(".modules_to_save.", ".")
        end = next((end for end in PARTS if plain.endswith(f".{end}")), None)
        if end is None and ("lora_" in plain or plain == name):
            raise UnsupportedModelError(f"the adapter has the tensor {name[:200]}, which is not supported")
        module = plain if end is None else plain.removesuffix(f".{end}")
        wanted = module if end is None else f"{module}.weight"
        choices = (wanted, wanted.removeprefix(prefix), prefix + wanted)
        target = next((choice for choice in choices if choice in self._names), None)
        if target is None:
            if end is not None or not may_be_new:
                raise UnsupportedModelError(f"the adapter changes {wanted[:200]}, which the base model does not have")
            target = wanted
        if end is None:
            self._replaced[target] = name
            self._names[target] = None
            return
        shape = self._adapter.shape(name)
        if PARTS[end] != "magnitude" and (len(shape) != 2 or 0 in shape):
            raise UnsupportedModelError(f"the adapter's tensor {name[:200]} is {shape}: expected a matrix")
        update = self._updates.setdefault(target, LoraUpdate(scale=1.0))
        update.parts[PARTS[end]] = name
        if PARTS[end] == "down":
            update.scale = read_scale(settings, module, shape[0])
            update.is_embedding = end == "lora_embedding_A"

    @property
    def changed_names(self) -> set[str]:
        """Return the names of the base model's tensors that the adapter changes or replaces."""
        return {*self._updates, *self._replaced}

    def keys(self) -> Iterator[str]:
        """Return an iterator over the names of all tensors."""
        return iter(self._names)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape without reading its values."""
        if name in self._replaced:
            return self._adapter.shape(self._replaced[name])
        return self._base.shape(name)

    def stored_as(self, name: str) -> str:
        """Return the number format in which a tensor, or the tensor that an update is added to, is stored."""
        if name in self._replaced:
            return self._adapter.stored_as(self._replaced[name])
        return self._base.stored_as(name)

    def __getitem__(self, name: str) -> Tensor:
        """Read one tensor and return it with the adapter's update, which is computed in float32."""
        if name in self._replaced:
            return self._adapter[self._replaced[name]]
        update = self._updates.get(name)
        if update is None:
            return self._base[name]
        weight = self._base[name].float()
        down, up = (self._adapter[update.parts[part]].float() for part in ("down", "up"))
        if up.shape[1] != down.shape[0]:
            raise ValueError(f"the adapter's matrices for {name} are {tuple(down.shape)} and {tuple(up.shape)}")
        delta = update.scale * (up @ down)  # (out, in)
        may_turn = self._stored_transposed or weight.shape != delta.shape
        turns = update.is_embedding or (may_turn and weight.shape == delta.T.shape)
        if turns:
            delta = delta.T
        if weight.shape != delta.shape:
            raise ValueError(f"the adapter's update of {name} is {tuple(delta.shape)}: expected {tuple(weight.shape)}")
        if "magnitude" not in update.parts:
            return weight + delta
        # DoRA (Liu et al. 2024): a learned length for each output, in the direction of the updated weights.
        whole = weight + delta
        axis = 0 if turns else 1
        length = self._adapter[update.parts["magnitude"]].float().flatten().unsqueeze(axis)
        if length.numel() != whole.shape[1 - axis]:
            raise ValueError(
                f"the adapter has {length.numel()} magnitudes for {name}: expected {whole.shape[1 - axis]}"
            )
        return whole / whole.norm(dim=axis, keepdim=True) * length


def check_settings(settings: Mapping[str, Any]) -> None:
    """Raise UnsupportedModelError if `adapter_config.json` asks for anything but LoRA, or for an unknown variant."""
    require(settings, "peft_type", "LORA")
    for key in ("layer_replication", "trainable_token_indices", "target_parameters", "lora_bias", "use_qalora"):
        if settings.get(key):
            raise UnsupportedModelError(f"adapter_config.json has {key}={shown(settings[key])}, which is not supported")
    init = settings.get("init_lora_weights")
    if isinstance(init, str) and init not in ("gaussian", "eva", "orthogonal"):
        raise UnsupportedModelError(
            f"adapter_config.json has init_lora_weights={shown(init)}, which also changes the base model: expected an "
            "adapter that was converted to plain LoRA"
        )


def read_scale(settings: Mapping[str, Any], module: str, rank: int) -> float:
    """Return the factor on a module's update: alpha / rank, or alpha / √rank with `use_rslora`.

    `alpha_pattern` has other values of alpha for some modules, by the name or the end of the name.
    """
    alpha = read_float(settings, "lora_alpha", default=8.0)
    patterns = settings.get("alpha_pattern") or {}
    if not isinstance(patterns, Mapping):
        raise UnsupportedModelError(f"adapter_config.json has alpha_pattern={shown(patterns)}: expected a table")
    for pattern, value in patterns.items():
        if not re.fullmatch(r"\^?[\w.]+", pattern):
            raise UnsupportedModelError(
                f"adapter_config.json has the alpha_pattern {shown(pattern)}: expected the name of a module"
            )
        name = pattern.removeprefix("^")
        if module == name or (not pattern.startswith("^") and module.endswith(f".{name}")):
            alpha = read_float({"alpha_pattern": value}, "alpha_pattern", default=8.0)
            break
    return alpha / (math.sqrt(rank) if settings.get("use_rslora") is True else rank)


def with_adapter_head(values: Mapping[str, Any], settings: Mapping[str, Any], adapter: Tensors) -> Mapping[str, Any]:
    """Return the base model's `config.json` values with the HF class of the adapter's head and its number of classes.

    Without a head of its own (`task_type` CAUSAL_LM, for example) the values stay as they are.
    """
    suffix = HEAD_CLASSES.get(str(settings.get("task_type")))
    if suffix is None:
        return values
    base = re.sub(r"(For[A-Z].*|(LMHead)?Model)$", "", read_architecture(values))
    changed = {**values, "architectures": [base + suffix]}
    ends = (".classifier.weight", ".classifier.out_proj.weight", ".score.weight")
    stored = [adapter.shape(name) for name in adapter.keys() if name.endswith(ends)]  # noqa: SIM118
    rows = [shape[0] for shape in stored if shape]
    if rows and suffix != "ForQuestionAnswering":
        listed = values.get("id2label")
        if not isinstance(listed, Mapping) or len(listed) != rows[-1]:
            changed |= {"num_labels": rows[-1], "id2label": None}
    return changed
