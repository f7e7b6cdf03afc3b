"""The precision to train with. `runtime/devices.py` chooses the device."""

import statistics
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
from torch import nn

from glassformer.training.lora import LowRank

Precision = Literal["auto", "fp32", "bf16", "fp16"]


WIDE = 384
"""Width from which bf16 matrix units of a CPU save more time than the conversions cost (measured)."""


def choose_precision(precision: Precision, device: torch.device, model: nn.Module) -> Literal["fp32", "bf16", "fp16"]:
    """Resolve "auto": bf16 if the device has hardware for it and the model is wide enough to profit, else fp32."""
    if precision != "auto":
        return precision
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported() else "fp32"
    # Leave out LoRA adapters: they are narrow, and the matrices that they belong to count already.
    adapters = {id(p) for module in model.modules() if isinstance(module, LowRank) for p in module.parameters()}
    widths = [min(p.shape) for p in model.parameters() if p.dim() == 2 and id(p) not in adapters]
    is_wide = bool(widths) and statistics.median(widths) >= WIDE
    return "bf16" if torch.cpu._is_amx_tile_supported() and is_wide else "fp32"


def autocast(precision: Literal["fp32", "bf16", "fp16"], device: torch.device) -> AbstractContextManager[object]:
    """Return the autocast context of this precision. Parameters stay float32."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16 if precision == "bf16" else torch.float16)
