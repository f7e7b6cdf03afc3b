"""The three forms of normalisation: layer norm, RMS norm, and the mean/std norm that documents 002 and 003 write."""

from typing import Literal

import torch
from torch import Tensor, nn

from glassformer.nn.tensor_checks import check_positive

NormKind = Literal["layer", "rms", "mean_std"]


class MeanStdNorm(nn.Module):
    """weight · (x - mean) / (std + eps) + bias, with the unbiased std and eps outside the root.

    It differs from layer norm by a factor of √(C/(C-1)), and in where eps stands.
    """

    def __init__(self, width: int, eps: float = 1e-6):
        super().__init__()
        if width < 2:
            raise ValueError(f"width={width}: expected at least 2, for one number has no unbiased deviation")
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) -> (..., C)."""
        dtype = x.dtype
        if dtype in (torch.float16, torch.bfloat16):
            x = x.float()  # squares of a few hundred are beyond float16
        centred = x - x.mean(-1, keepdim=True)
        # Not x.std(): its gradient is 0/0 where all of x is equal, as it is for a zeroed embedding.
        variance = centred.square().sum(-1, keepdim=True) / (x.shape[-1] - 1)
        std = variance.clamp_min(torch.finfo(x.dtype).tiny).sqrt()
        return self.weight * (centred / (std + self.eps)).to(dtype) + self.bias


def make_norm(kind: NormKind, width: int, eps: float) -> nn.Module:
    """The norm of this kind over the last dimension, `width` wide."""
    check_positive("norm width", width)
    if kind == "layer":
        return nn.LayerNorm(width, eps=eps)
    if kind == "rms":
        return nn.RMSNorm(width, eps=eps)
    if kind == "mean_std":
        return MeanStdNorm(width, eps=eps)
    raise ValueError(f"norm={kind!r}: expected 'layer', 'rms' or 'mean_std'")
