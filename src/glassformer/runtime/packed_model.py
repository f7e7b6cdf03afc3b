"""Fuse projections for inference: one matrix product for Q, K and V, and one for a gated feed-forward's two inputs.

Single-token steps are launch-bound, so fewer, larger products are faster. On a GPU the output layer is also padded to
a width for which there are fast kernels.

A packed model has other parameter names than the original, so it can be neither trained nor saved. A model that must
stay as it is gets `share_fused_storage` and a packed twin (`packed_twin`): both have the same weights in memory, each
under its own names. Training the original in place then changes the twin, too.
"""

import copy
from collections.abc import Sequence
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
    _pad_output(packed)
    return packed


def packed_twin(model: AnyModel) -> AnyModel:
    """Return a packed model that shares the memory of the model's parameters, in eval mode.

    Only what `share_fused_storage` has not laid out for it is copied: on a GPU a padded output layer.
    """
    shared = {id(parameter): parameter for parameter in model.parameters()}
    twin = copy.deepcopy(model, dict(shared)).eval()
    fuse_projections(twin)
    _pad_output(twin)
    return twin


def share_fused_storage(module: nn.Module) -> None:
    """Move the weights that `fuse_projections` would concatenate next to each other in memory, in place.

    The parameters keep their names and values, and become views of one tensor. `has_fused_storage` is then true.
    """
    for layers in _fusible(module):
        _put_side_by_side([layer.weight for layer in layers])
        if all(layer.bias is not None for layer in layers):
            _put_side_by_side([layer.bias for layer in layers])


def has_fused_storage(module: nn.Module) -> bool:
    """Return whether all weights that a packed model concatenates lie next to each other, so that none is copied.

    It is false again after the model was moved to another device or dtype.
    """
    groups = _fusible(module)
    # Layers with adapters or quantized weights have no weight that others could lie next to. Weights that are divided
    # among processes (`--parallel`) are not dense tensors.
    linears = [layer for layers in groups for layer in layers]
    is_plain = all(type(layer) is nn.Linear and not hasattr(layer.weight, "to_local") for layer in linears)
    return (
        bool(groups)
        and is_plain
        and all(_side_by_side([layer.weight for layer in layers]) is not None for layers in groups)
    )


def _fusible(module: nn.Module) -> list[list[nn.Linear]]:
    """Return the linear layers of a module that can be fused, in groups."""
    found: list[list[nn.Linear]] = []
    for layer in module.modules():
        if isinstance(layer, Layer) and layer.self_attn.qkv_proj is None:
            found.append([layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj])
        elif isinstance(layer, FeedForward) and layer.gate_up_proj is None and layer.gate_proj is not None:
            found.append([layer.gate_proj, layer.up_proj])
    return found


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
    """Return one linear layer whose output is the concatenated outputs of these layers, in order.

    Weights that lie next to each other in memory are not copied.
    """
    weight = _concatenated([layer.weight for layer in layers])
    biases = [layer.bias for layer in layers if layer.bias is not None]
    if biases and len(biases) < len(layers):  # a missing bias is zero
        biases = [layer.weight.new_zeros(len(layer.weight)) if layer.bias is None else layer.bias for layer in layers]
    whole = nn.Linear(layers[0].in_features, len(weight), bias=bool(biases), device="meta")
    whole.weight = nn.Parameter(weight, requires_grad=False)
    if biases:
        whole.bias = nn.Parameter(_concatenated(biases), requires_grad=False)
    return whole


def _concatenated(parts: Sequence[Tensor]) -> Tensor:
    together = _side_by_side(parts)
    return torch.cat([part.detach() for part in parts]) if together is None else together


def _side_by_side(parts: Sequence[Tensor]) -> Tensor | None:
    """Return the tensor that these tensors are consecutive rows of, without a copy; None if they are not."""
    first, place = parts[0].detach(), parts[0].storage_offset()
    for part in parts:
        is_same = part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr() and part.is_contiguous()
        if not is_same or part.storage_offset() != place or part.dtype != first.dtype:
            return None
        place += part.numel()
    shape = (sum(map(len, parts)), *first.shape[1:])
    return first.as_strided(shape, first.stride(), first.storage_offset())


def _put_side_by_side(parameters: Sequence[Tensor]) -> None:
    if _side_by_side(parameters) is None:
        whole = torch.cat([parameter.detach() for parameter in parameters])
        for parameter, rows in zip(parameters, torch.split(whole, [len(one) for one in parameters]), strict=True):
            parameter.data = rows


def _pad_output(model: Model) -> None:
    """Pad the output layer of a model on a GPU to a width for which there are fast kernels, in place."""
    head = model.head
    is_cuda = next(model.parameters()).is_cuda
    if isinstance(head, LanguageModelHead) and is_cuda and head.out_proj.out_features % OUTPUT_ALIGNMENT:
        head.out_proj = PaddedLinear(head.out_proj)  # type: ignore[assignment]


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
