"""Frozen linear layers whose weights take 8 or 4 bits, to train LoRA adapters over them (QLoRA, Dettmers et al. 2023).

The weights are dequantized in each forward pass, and again in the backward pass, so that no pass keeps them. Eight bits
have one scale per output. Four bits have a scale and a least value for each group of 32 inputs, as Q4_1 of GGUF has.
"""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

FrozenBits = Literal["none", "int8", "int4"]
GROUP = 32
"""Number of neighboring inputs that share a scale and a least value in four bits."""


class FrozenLinear(nn.Module):
    """A linear layer that is not trained, with weights in 8 or 4 bits."""

    packed: Tensor
    scales: Tensor
    lowest: Tensor

    def __init__(self, linear: nn.Linear, bits: Literal["int8", "int4"]):
        super().__init__()
        self.in_features, self.out_features, self.bits = linear.in_features, linear.out_features, bits
        weight = linear.weight.detach().float()
        if bits == "int8":
            scales = (weight.abs().amax(1, keepdim=True) / 127).clamp_min(1e-30)
            packed, lowest = (weight / scales).round().to(torch.int8), torch.empty(0)
        else:
            groups = F.pad(weight, (0, -self.in_features % GROUP)).view(len(weight), -1, GROUP)  # (out, groups, 32)
            lowest, highest = groups.amin(2, keepdim=True), groups.amax(2, keepdim=True)
            scales = ((highest - lowest) / 15).clamp_min(1e-30)
            levels = ((groups - lowest) / scales).round().clamp(0, 15).to(torch.uint8)
            packed = levels[..., : GROUP // 2] | levels[..., GROUP // 2 :] << 4  # two levels in a byte
            scales, lowest = scales.bfloat16(), lowest.bfloat16()
        for name, value in (("packed", packed), ("scales", scales), ("lowest", lowest)):
            self.register_buffer(name, value, persistent=False)
        self.bias = linear.bias
        if self.bias is not None:
            self.bias.requires_grad_(False)

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """Return the weight (out, in) in a floating-point type."""
        if self.bits == "int8":
            return (self.packed * self.scales).to(dtype)
        levels = torch.cat((self.packed & 15, self.packed >> 4), -1).to(dtype)
        weight = torch.addcmul(self.lowest.to(dtype), levels, self.scales.to(dtype))
        return weight.flatten(1)[:, : self.in_features]

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to x: (..., in) -> (..., out)."""
        kind = x.device.type
        if torch.is_autocast_enabled(kind):
            x = x.to(torch.get_autocast_dtype(kind))
        product: Tensor = _FrozenProduct.apply(x, self)  # type: ignore[no-untyped-call]
        return product if self.bias is None else product + self.bias.to(product.dtype)


class _FrozenProduct(torch.autograd.Function):
    """The product of inputs and the weight of a `FrozenLinear`, which has no gradient and is not kept."""

    @staticmethod
    @override
    def forward(ctx: Any, x: Tensor, layer: FrozenLinear) -> Tensor:
        """Return x (..., in) times the transposed weight."""
        ctx.layer = layer
        return x @ layer.dequantize(x.dtype).t()

    @staticmethod
    @override
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        """Return the gradient of the inputs."""
        (gradient,) = upstream
        return gradient @ ctx.layer.dequantize(gradient.dtype), None
