"""Normalization: layer norm, RMS norm, and the mean/std norm of the tutorial documents 002 and 003.

`docs/documents.md` describes the five tutorial documents that this project implements.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from glassformer.kernels.kernel_set import KernelSet
from glassformer.nn.tensor_checks import check_positive

NormKind = Literal["layer", "rms", "offset_rms", "mean_std"]


class MeanStdNorm(nn.Module):
    """Layer norm as tutorial documents 002 and 003 define it: weight * (x - mean) / (std + eps) + bias.

    Mean and unbiased standard deviation are over the last dimension. torch's `nn.LayerNorm` divides by √(var + eps)
    with the biased variance instead.
    """

    def __init__(self, width: int, eps: float = 1e-6):
        super().__init__()
        if width < 2:
            raise ValueError(f"width={width}: expected at least 2, for an unbiased standard deviation")
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize x (..., C) over its last dimension and return the same shape."""
        dtype = x.dtype
        if dtype in (torch.float16, torch.bfloat16):
            x = x.float()  # squares above 256 overflow float16
        centered = x - x.mean(-1, keepdim=True)
        # Not x.std(): its gradient is 0/0 if all elements are equal, as in an embedding of zeros.
        variance = centered.square().sum(-1, keepdim=True) / (x.shape[-1] - 1)
        std = variance.clamp_min(torch.finfo(x.dtype).tiny).sqrt()
        return self.weight * (centered / (std + self.eps)).to(dtype) + self.bias


class OffsetRMSNorm(nn.Module):
    """RMS norm whose weight is stored as its difference from 1, as in Gemma: (1 + weight) * x / rms(x)."""

    def __init__(self, width: int, eps: float = 1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize x (..., C) over its last dimension and return the same shape, in float32 inside."""
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (scaled * (1.0 + self.weight.to(wide.dtype))).to(x.dtype)


def normalize(norm: nn.Module, x: Tensor, kernels: KernelSet | None = None) -> Tensor:
    """Return norm(x), by the kernels where they have this norm. A norm with forward hooks is always called itself."""
    is_watched = norm._forward_hooks or norm._forward_pre_hooks
    if kernels is None or is_watched or type(norm) not in (nn.RMSNorm, nn.LayerNorm):
        return norm(x)
    assert isinstance(norm, nn.RMSNorm | nn.LayerNorm)
    weight, bias, eps = norm.weight, getattr(norm, "bias", None), norm.eps
    given = [tensor for tensor in (x, weight, bias) if tensor is not None]
    if eps is None or norm.normalized_shape != x.shape[-1:] or not kernels.has_row_kernels(*given):
        return norm(x)
    if isinstance(norm, nn.RMSNorm):
        return kernels.rms_norm(x, weight, eps)
    return kernels.layer_norm(x, weight, bias, eps)


def make_norm(kind: NormKind, width: int, eps: float, *, bias: bool = True, weight: bool = True) -> nn.Module:
    """Return a new norm module over a last dimension of size `width`.

    `kind` is "layer" (`nn.LayerNorm`), "rms" (`nn.RMSNorm`), "offset_rms" (`OffsetRMSNorm`) or "mean_std"
    (`MeanStdNorm`). `bias` says whether a layer norm has one; RMS norms never do. Without
    `weight`, as in OLMo, a layer norm or RMS norm has no parameters.
    """
    check_positive("norm width", width)
    if kind == "layer":
        return nn.LayerNorm(width, eps=eps, bias=bias, elementwise_affine=weight)
    if kind == "rms":
        return nn.RMSNorm(width, eps=eps, elementwise_affine=weight)
    if kind == "offset_rms":
        return OffsetRMSNorm(width, eps=eps)
    if kind == "mean_std":
        return MeanStdNorm(width, eps=eps)
    raise ValueError(f"norm={kind!r}: expected 'layer', 'rms', 'offset_rms' or 'mean_std'")
