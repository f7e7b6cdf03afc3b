"""A model packed for writing: fewer and better products, the same numbers.

A step for one token is over before a device has warmed to it, so that each product costs its launch. Queries, keys and
values of self-attention come of one product here, so do a feed-forward's gate and what it gates, and on a GPU the
output layer is as wide as its kernels like.
"""

import copy
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from glassformer.models import Model
from glassformer.models.heads import LanguageModelHead
from glassformer.nn import FeedForward
from glassformer.nn.layers import Layer

LIKED = 64
"""Outputs of a layer in which a GPU's fast kernels come."""

AnyModel = TypeVar("AnyModel", bound=Model)


def pack(model: AnyModel) -> AnyModel:
    """A copy of the model, in evaluation mode, whose answers differ by rounding alone. What was given stays as it is.

    It can be written with, quantised and recorded; it is not for training or saving: its parameters have other names.
    """
    packed = copy.deepcopy(model).eval()
    for layer in list(packed.modules()):
        if isinstance(layer, Layer):
            own = layer.self_attn
            own.qkv_proj = _side_by_side([own.q_proj, own.k_proj, own.v_proj])
            del own.q_proj, own.k_proj, own.v_proj
        elif isinstance(layer, FeedForward) and layer.gate_proj is not None:
            layer.gate_up_proj = _side_by_side([layer.gate_proj, layer.up_proj])
            del layer.gate_proj, layer.up_proj
    head = packed.head
    is_cuda = next(packed.parameters()).is_cuda
    if isinstance(head, LanguageModelHead) and is_cuda and head.out_proj.out_features % LIKED:
        head.out_proj = PaddedLinear(head.out_proj)  # type: ignore[assignment]
    return packed


def _side_by_side(layers: list[nn.Linear]) -> nn.Linear:
    """One layer whose outputs are those of all."""
    weights = [layer.weight.detach() for layer in layers]
    biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
    whole = nn.Linear(layers[0].in_features, sum(map(len, weights)), bias=bool(biases), device="meta")
    whole.weight = nn.Parameter(torch.cat(weights), requires_grad=False)
    if biases:
        whole.bias = nn.Parameter(torch.cat(biases), requires_grad=False)
    return whole


class PaddedLinear(nn.Module):
    """`nn.Linear` with outputs that nobody asked for computed too, and left out again."""

    def __init__(self, layer: nn.Linear):
        super().__init__()
        self.out_features, missing = layer.out_features, -layer.out_features % LIKED
        self.weight = nn.Parameter(pad(layer.weight.detach(), (0, 0, 0, missing)), requires_grad=False)
        bias = None if layer.bias is None else nn.Parameter(pad(layer.bias.detach(), (0, missing)), requires_grad=False)
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        return linear(x, self.weight, self.bias)[..., : self.out_features]
