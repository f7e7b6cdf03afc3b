"""Copy a model with quantized weights in its linear layers, which take fewer bytes, for inference on a CPU.

The model's code stays the same: its linear layers are replaced.

| weights | linear layers                                                                                    |
|---------|--------------------------------------------------------------------------------------------------|
| int8    | `nn/quantized_linear.py`: 8 bits per weight, one scale per output channel; activations of one    |
|         | byte, but two bytes in a decoder-only model                                                      |
| int4    | `nn/groupwise_linear.py`: groups of 32 weights; 5 bits per weight in layers and 8.5 in the head, |
|         | scales and minimums included                                                                     |
"""

import copy
from typing import Literal, TypeVar

import torch
from torch import nn

from glassformer.kernels.groupwise_matrix import Bits
from glassformer.models import Model
from glassformer.nn import FeedForward
from glassformer.nn.groupwise_linear import quantized_linear
from glassformer.nn.layers import Layer
from glassformer.nn.quantized_linear import Int8Linear, TorchInt8Linear, int8_layer_class
from glassformer.runtime.decision_rules import TWO_BYTE_ACTIVATIONS, WEIGHT_RULES, Situation, decide

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
    """Replace the linear layers in a module, which must be in float32 on the CPU, by quantized ones, in place.

    The float weights of each layer are dropped before those of the next one are quantized. Call it with the whole model
    at last, even if its parts were quantized before: the kind of model decides how many bytes an activation takes.
    """
    if weights == "int4":
        _quantize_groupwise(module, 8)
        return
    make = int8_layer_class()
    if make is Int8Linear and isinstance(module, FeedForward):
        _fuse_relu(module)
    for name in [name for name, _ in module.named_children()]:
        child = module.get_submodule(name)
        if type(child) is nn.Linear:
            setattr(module, name, make(child))
        else:
            quantize_linears(child)
        del child
    if isinstance(module, Model):
        _choose_activation_bytes(module)


def _choose_activation_bytes(model: Model) -> None:
    """Let activations take two bytes in the int8 layers of a model for which the rules say so."""
    rule = decide(WEIGHT_RULES, Situation(is_quantized=True, is_decoder_only=model.kind == "decoder"))
    if rule.decision == TWO_BYTE_ACTIVATIONS:
        for layer in model.modules():
            if isinstance(layer, Int8Linear | TorchInt8Linear):
                layer.set_activation_bytes(2)


def _quantize_groupwise(module: nn.Module, bits: Bits) -> None:
    """Replace linear layers by group-wise quantized ones: 4 bits inside of a `Layer`, `bits` elsewhere.

    Errors of the output layer reach the logits directly, and those of other layers are averaged.
    """
    bits = 4 if isinstance(module, Layer) else bits
    for name in [name for name, _ in module.named_children()]:
        child = module.get_submodule(name)
        if type(child) is nn.Linear:
            setattr(module, name, quantized_linear(child, bits))
        else:
            _quantize_groupwise(child, bits)
        del child


def _fuse_relu(network: FeedForward) -> None:
    """Quantize the first layer of a ReLU feed-forward network without a gate, and let it compute the ReLU too."""
    is_plain = network.gate_up_proj is None and network.gate_proj is None
    if is_plain and network.act is nn.functional.relu and type(network.up_proj) is nn.Linear:
        network.up_proj = Int8Linear(network.up_proj, relu=True)  # type: ignore[assignment]
        network.act = torch.positive  # the identity
