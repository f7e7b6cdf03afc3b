"""Fuse projections for inference: one matrix product for Q, K and V, and one for a gated feed-forward's two inputs.

Single-token steps are launch-bound, so fewer, larger products are faster. On a GPU the output layer is also padded to
a width for which there are fast kernels.
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

OUTPUT_ALIGNMENT = 64
"""The fast matrix-product kernels of GPUs need a number of outputs that is a multiple of this."""

AnyModel = TypeVar("AnyModel", bound=Model)


def pack(model: AnyModel) -> AnyModel:
    """Return a copy of the model with fused projections, in eval mode. Its outputs are the same up to rounding.

    The copy can generate, be quantized and be recorded. It cannot be trained or saved: its parameter names differ. The
    original is not modified.
    """
    packed = copy.deepcopy(model).eval()
    fuse_projections(packed)
    head = packed.head
    is_cuda = next(packed.parameters()).is_cuda
    if isinstance(head, LanguageModelHead) and is_cuda and head.out_proj.out_features % OUTPUT_ALIGNMENT:
        head.out_proj = PaddedLinear(head.out_proj)  # type: ignore[assignment]
    return packed


def fuse_projections(module: nn.Module) -> None:
    """Fuse the projections of all layers in a module, in place. What is fused already stays as it is."""
    for layer in list(module.modules()):
        if isinstance(layer, Layer) and layer.self_attn.qkv_proj is None:
            own = layer.self_attn
            own.qkv_proj = concatenate_linears([own.q_proj, own.k_proj, own.v_proj])
            del own.q_proj, own.k_proj, own.v_proj
        elif isinstance(layer, FeedForward) and layer.gate_up_proj is None and layer.gate_proj is not None:
            layer.gate_up_proj = concatenate_linears([layer.gate_proj, layer.up_proj])
            del layer.gate_proj, layer.up_proj


def concatenate_linears(layers: list[nn.Linear]) -> nn.Linear:
    """Return one linear layer whose output is the concatenated outputs of these layers, in order."""
    weights = [layer.weight.detach() for layer in layers]
    biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
    whole = nn.Linear(layers[0].in_features, sum(map(len, weights)), bias=bool(biases), device="meta")
    whole.weight = nn.Parameter(torch.cat(weights), requires_grad=False)
    if biases:
        whole.bias = nn.Parameter(torch.cat(biases), requires_grad=False)
    return whole


class PaddedLinear(nn.Module):
    """`nn.Linear` padded to a multiple of 64 outputs, for faster GPU kernels. The padding is sliced off."""

    def __init__(self, layer: nn.Linear):
        super().__init__()
        self.out_features, missing = layer.out_features, -layer.out_features % OUTPUT_ALIGNMENT
        self.weight = nn.Parameter(pad(layer.weight.detach(), (0, 0, 0, missing)), requires_grad=False)
        bias = None if layer.bias is None else nn.Parameter(pad(layer.bias.detach(), (0, missing)), requires_grad=False)
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs without the padding: (..., in) -> (..., out)."""
        return linear(x, self.weight, self.bias)[..., : self.out_features]
