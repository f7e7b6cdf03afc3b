"""Copy a model with quantized weights in its linear layers, which take fewer bytes, for inference on a CPU.

The model's code stays the same: its linear layers are replaced.

| weights | linear layers                                                                                    |
|---------|--------------------------------------------------------------------------------------------------|
| int8    | `nn/quantized_linear.py`: 8 bits per weight, one scale per output channel                        |
| int4    | `nn/groupwise_linear.py`: groups of 32 weights; 5 bits per weight in layers and 8.5 in the head, |
|         | scales and minimums included                                                                     |
"""

import copy
from typing import Literal, TypeVar

import torch
from torch import nn

from glassformer.models import Model
from glassformer.nn import FeedForward
from glassformer.nn.groupwise_linear import quantized_linear
from glassformer.nn.layers import Layer
from glassformer.nn.quantized_linear import Int8Linear, int8_layer_class

AnyModel = TypeVar("AnyModel", bound=Model)


WeightKind = Literal["int8", "int4"]


def quantize(model: AnyModel, weights: WeightKind = "int8") -> AnyModel:
    """Return a copy of the model, in eval mode on the CPU, whose linear layers have quantized weights.

    A layer's output is off by about one percent with int8 weights and 8 percent with int4 weights. Embeddings and norms
    stay in float32. The original is not modified. Raises KernelBuildError if no int8 kernel runs on this machine; int4
    runs everywhere.
    """
    if weights == "int8":
        int8_layer_class()  # raises before the copy is made
    quantized = copy.deepcopy(model).cpu().float().eval()
    quantize_linears(quantized, weights)
    return quantized


def quantize_linears(module: nn.Module, weights: WeightKind = "int8") -> None:
    """Replace the linear layers in a module, which must be in float32 on the CPU, by quantized ones, in place."""
    if weights == "int4":
        _quantize_groupwise(module)
        return
    make = int8_layer_class()
    for part in list(module.modules()):
        if make is Int8Linear and isinstance(part, FeedForward):
            _fuse_relu(part)
        for name, child in list(part.named_children()):
            if type(child) is nn.Linear:
                setattr(part, name, make(child))


def _quantize_groupwise(module: nn.Module) -> None:
    """Replace linear layers by group-wise quantized ones: 4 bits inside of a `Layer`, 8 bits elsewhere.

    Errors of the output layer reach the logits directly, and those of other layers are averaged.
    """
    inner = {part for layer in module.modules() if isinstance(layer, Layer) for part in layer.modules()}
    for part in list(module.modules()):
        for name, child in list(part.named_children()):
            if type(child) is nn.Linear:
                setattr(part, name, quantized_linear(child, 4 if part in inner else 8))


def _fuse_relu(network: FeedForward) -> None:
    """Quantize the first layer of a ReLU feed-forward network without a gate, and let it compute the ReLU too."""
    is_plain = network.gate_up_proj is None and network.gate_proj is None
    if is_plain and network.act is nn.functional.relu and type(network.up_proj) is nn.Linear:
        network.up_proj = Int8Linear(network.up_proj, relu=True)  # type: ignore[assignment]
        network.act = torch.positive  # the identity
