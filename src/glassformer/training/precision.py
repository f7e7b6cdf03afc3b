"""Which device and which numbers to compute with."""

import statistics
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
from torch import nn

from glassformer.training.lora import LowRank

Precision = Literal["auto", "fp32", "bf16", "fp16"]


def choose_device(name: str) -> torch.device:
    """`auto` is cuda where there is one, else cpu."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device={name!r} is no device that torch knows: expected auto, cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device={name!r}: no CUDA device is there; expected 'cpu' or 'auto'")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device={name!r}: there are {torch.cuda.device_count()} CUDA devices, counted from 0")
    if device.type not in ("cpu", "cuda"):
        try:
            torch.ones(1, device=device).item()
        except (RuntimeError, AssertionError, NotImplementedError, ImportError):
            raise ValueError(f"device={name!r} cannot compute here: expected auto, cpu or cuda") from None
    return device


WIDE = 384
"""From about this width on, a CPU with units for bf16 gains more by them than it loses by converting to and fro."""


def choose_precision(precision: Precision, device: torch.device, model: nn.Module) -> Literal["fp32", "bf16", "fp16"]:
    """`auto` is bf16 where the device has units for it, and the model is wide enough for them to pay."""
    if precision != "auto":
        return precision
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported() else "fp32"
    # An adapter is narrow by design, and the matrix it belongs to is among the parameters too.
    adapters = {id(p) for module in model.modules() if isinstance(module, LowRank) for p in module.parameters()}
    widths = [min(p.shape) for p in model.parameters() if p.dim() == 2 and id(p) not in adapters]
    is_wide = bool(widths) and statistics.median(widths) >= WIDE
    return "bf16" if torch.cpu._is_amx_tile_supported() and is_wide else "fp32"


def autocast(precision: Literal["fp32", "bf16", "fp16"], device: torch.device) -> AbstractContextManager[object]:
    """Compute matrix products in half precision, where the choice says so; parameters stay float32."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16 if precision == "bf16" else torch.float16)
