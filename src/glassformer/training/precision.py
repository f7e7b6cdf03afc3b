"""Which device and which numbers to compute with."""

from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch

Precision = Literal["auto", "fp32", "bf16", "fp16"]


def choose_device(name: str) -> torch.device:
    """`auto` is cuda where there is one, else cpu."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device={name!r}: no CUDA device is there; expected 'cpu' or 'auto'")
    return device


def choose_precision(precision: Precision, device: torch.device) -> Literal["fp32", "bf16", "fp16"]:
    """`auto` is bf16 where the device has units for it; a CPU without them would compute it many times slower."""
    if precision != "auto":
        return precision
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported() else "fp32"
    return "bf16" if torch.cpu._is_amx_tile_supported() else "fp32"


def autocast(precision: Literal["fp32", "bf16", "fp16"], device: torch.device) -> AbstractContextManager[object]:
    """Compute matrix products in half precision, where the choice says so; parameters stay float32."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16 if precision == "bf16" else torch.float16)
