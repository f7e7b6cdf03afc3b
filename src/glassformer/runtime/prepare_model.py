"""Prepare a loaded model for use: on its device, in its dtype, and with 8-bit or 4-bit weights if asked for.

`decision_rules.py` has the rules. `choose_runner.py` then decides how each of its decoding steps is computed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

import torch
from torch import nn

from glassformer.models import Model, ModelConfig
from glassformer.models.costs import count_parameters, weight_bytes_by_format
from glassformer.models.heads import LanguageModelHead
from glassformer.nn.layers import Layer
from glassformer.runtime.decision_rules import (
    AS_STORED,
    DEVICE_RULES,
    NUMBER_RULES,
    WEIGHT_RULES,
    Rule,
    Situation,
    decide,
)
from glassformer.runtime.devices import choose_device
from glassformer.runtime.packed_model import fuse_projections, pack, share_fused_storage
from glassformer.runtime.quantized_model import quantize as quantize_model
from glassformer.runtime.quantized_model import quantize_linears

AnyModel = TypeVar("AnyModel", bound=Model)
DtypeName = Literal["auto", "float32", "bfloat16", "float16"]
Quantization = Literal["none", "int8", "int4"]
"""How the weights of linear layers are stored: "none" keeps the dtype."""


@dataclass(frozen=True)
class Preparation:
    """How a model is prepared for use: the decision of `choose_preparation`.

    A model that is in memory is prepared as a whole (`apply`). One that is being loaded is prepared module by module
    (`prepare_module`), so that its float weights and its quantized weights are never in memory together.
    """

    device: torch.device
    dtype: torch.dtype
    """The dtype of the parameters. In a quantized model it is that of embeddings, norms and activations."""
    quantize: Quantization
    device_rule: Rule
    """Why the model computes on this device."""
    number_rule: Rule
    """Why the model computes in this dtype."""
    keeps_quantized: bool = False
    """Whether the quantized weights of a GGUF file stay as they are stored."""

    @property
    def fuses(self) -> bool:
        """Whether the weights are laid out for a packed twin (`packed_model.py`)."""
        situation = Situation(device=self.device.type, is_quantized=self.quantize != "none")
        return decide(WEIGHT_RULES, situation).decision.startswith("projections fused")

    def prepare_module(self, module: nn.Module) -> None:
        """Prepare a module of a model that is being loaded, in place, when all its parameters have been read.

        Layers and the output layer are prepared one by one, and then what is left of the whole model.
        """
        if isinstance(module, Layer | LanguageModelHead | Model) and self.quantize != "none":
            fuse_projections(module)
            quantize_linears(module, self.quantize)
        elif isinstance(module, Layer) and self.fuses:
            share_fused_storage(module.to(self.device))

    def finish(self, model: AnyModel) -> AnyModel:
        """Return a loaded model whose modules were given to `prepare_module`, on its device."""
        return model.to(self.device) if self.quantize == "none" else model

    def apply(self, model: AnyModel) -> AnyModel:
        """Prepare a whole model: in place, but a quantized model is a copy whose projections are fused (`pack`)."""
        if self.quantize != "none":
            return quantize_model(pack(model), self.quantize)
        model = model.to(self.device, self.dtype).eval()
        if self.fuses:
            share_fused_storage(model)
        return model


def choose_preparation(
    *,
    device: torch.device | str = "auto",
    dtype: torch.dtype | DtypeName = "auto",
    quantize: Quantization = "none",
    stored_format: Callable[[], str] = lambda: "F32",
) -> Preparation:
    """Return how a model is prepared for these wishes, by the rules in `decision_rules.py`.

    `stored_format` returns the format in which the model's file stores most numbers. It is called only where that
    matters: for dtype "auto" on a GPU.

    Raises ValueError for wishes that cannot be combined, such as quantized weights on a GPU.
    """
    if quantize not in get_args(Quantization):
        raise ValueError(f"quantize={quantize!r}: expected one of {', '.join(get_args(Quantization))}")
    wanted, asked = read_dtype(dtype), str(device)
    chosen = choose_device(asked)
    if quantize != "none" and asked != "auto" and chosen.type != "cpu":
        raise ValueError(f"quantize={quantize!r} with device={asked!r}: {quantize} runs on a CPU, expected cpu or auto")
    if quantize != "none" and wanted != torch.float32:
        raise ValueError(f"quantize={quantize!r} with dtype={dtype}: expected one of them")
    situation = Situation(asked_device=asked, has_gpu=chosen.type == "cuda", is_quantized=quantize != "none")
    rule = decide(DEVICE_RULES, situation)
    computes_on = torch.device("cpu") if rule.decision == "cpu" else chosen
    keeps = quantize == "none" and dtype == "auto" and computes_on.type == "cpu"
    is_open = dtype == "auto" and computes_on.type == "cuda"
    situation = Situation(
        asked_dtype=str(dtype), device=computes_on.type, stored_as=stored_format() if is_open else "F32"
    )
    numbers = decide(NUMBER_RULES, situation)
    if numbers.decision == AS_STORED:
        wanted = torch.bfloat16 if situation.stored_as == "BF16" else torch.float16
    return Preparation(computes_on, wanted, quantize, rule, numbers, keeps)


def prepare_model(
    model: AnyModel,
    *,
    device: torch.device | str = "auto",
    dtype: torch.dtype | DtypeName = "auto",
    quantize: Quantization = "none",
) -> AnyModel:
    """Return the model in eval mode, on this device, in this dtype, and quantized if `quantize` is not "none".

    It is the same object, changed in place; but a quantized model is a copy, whose projections are fused (`pack`).
    """
    return choose_preparation(device=device, dtype=dtype, quantize=quantize).apply(model)


def weight_bytes(config: ModelConfig, dtype: torch.dtype, quantize: Quantization = "none") -> int:
    """Return the size of a prepared model's weights in bytes; see `weight_bytes_by_format`."""
    if quantize != "none":
        return weight_bytes_by_format(config)[quantize]
    return count_parameters(config) * dtype.itemsize


def read_dtype(dtype: torch.dtype | DtypeName) -> torch.dtype:
    """Return the torch dtype of this name; "auto" is float32, as long as no other rule applies (`NUMBER_RULES`)."""
    if isinstance(dtype, torch.dtype):
        if not dtype.is_floating_point:
            raise ValueError(
                f"dtype={dtype}: expected a floating-point dtype; quantize='int8' computes with 8-bit weights"
            )
        return dtype
    if dtype not in get_args(DtypeName):
        raise ValueError(f"dtype={dtype!r}: expected one of {', '.join(get_args(DtypeName))}")
    found: torch.dtype = getattr(torch, "float32" if dtype == "auto" else dtype)
    return found
