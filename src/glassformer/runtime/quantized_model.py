"""Copy a model with int8 weights in its linear layers, which take a quarter of the bytes, for inference on a CPU.

The model's code stays the same: its linear layers are replaced by those of `nn/quantized_linear.py`, which use our C++
kernel, or torch's int8 kernel where ours does not run.
"""

import copy
from typing import TypeVar

import torch
from torch import nn

from glassformer.models import Model
from glassformer.nn import FeedForward
from glassformer.nn.quantized_linear import Int8Linear, int8_layer_class

AnyModel = TypeVar("AnyModel", bound=Model)


def quantize(model: AnyModel) -> AnyModel:
    """Return a copy of the model, in eval mode on the CPU, whose linear layers compute in int8.

    A layer's output is off by about one percent. Embeddings and norms stay in float32. The original is not modified.
    Raises KernelBuildError if no int8 kernel runs on this machine.
    """
    int8_layer_class()  # raises before the copy is made
    quantized = copy.deepcopy(model).cpu().float().eval()
    quantize_linears(quantized)
    return quantized


def quantize_linears(module: nn.Module) -> None:
    """Replace the linear layers in a module, which must be in float32 on the CPU, by int8 layers, in place.

    The float weights of each layer are dropped before those of the next one are quantized.
    """
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


def _fuse_relu(network: FeedForward) -> None:
    """Quantize the first layer of a ReLU feed-forward network without a gate, and let it compute the ReLU too."""
    is_plain = network.gate_up_proj is None and network.gate_proj is None
    if is_plain and network.act is nn.functional.relu and type(network.up_proj) is nn.Linear:
        network.up_proj = Int8Linear(network.up_proj, relu=True)  # type: ignore[assignment]
        network.act = torch.positive  # the identity
