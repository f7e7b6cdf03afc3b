"""The precision to train with. `runtime/devices.py` chooses the device."""

import statistics
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
from torch import nn

from glassformer.runtime.devices import choose_device
from glassformer.training.bf16_linear import bf16_matmuls
from glassformer.training.float8_linear import has_float8
from glassformer.training.lora import LowRank
from glassformer.training.train_config import TrainConfig

Precision = Literal["auto", "fp32", "bf16", "fp16", "fp8"]


WIDE = 64
"""Median width of a model's matrices from which a CPU with matrix units (AMX) trains in bf16. At a width of 128 a step
takes two thirds of the time that it takes in fp32; narrower models were not measured."""


def choose_precision(precision: Precision, device: torch.device, model: nn.Module) -> Literal["fp32", "bf16", "fp16"]:
    """Return `precision`, with "auto" replaced by bf16 if that is likely faster, else by fp32.

    On CUDA that is so if the device supports bf16; on a CPU, if it has AMX and the matrices of the model are wide.
    "fp8" is bf16, too, with some layers in fp8 (`float8_linear.py`). Raises ValueError if the device has no fp8.
    """
    if precision == "fp8":
        if not has_float8(device):
            needed = "expected an NVIDIA GPU of compute capability 8.9 or more, such as an H100"
            raise ValueError(f"precision='fp8' on {device}: {needed}; or bf16")
        return "bf16"
    if precision != "auto":
        return precision
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported() else "fp32"
    # Leave out LoRA adapters: they are narrow, and the matrices that they belong to count already.
    adapters = {id(p) for module in model.modules() if isinstance(module, LowRank) for p in module.parameters()}
    widths = [min(p.shape) for p in model.parameters() if p.dim() == 2 and id(p) not in adapters]
    is_wide = bool(widths) and statistics.median(widths) >= WIDE
    return "bf16" if torch.cpu._is_amx_tile_supported() and is_wide else "fp32"


def is_bf16_on_gpu(config: TrainConfig, model: nn.Module) -> bool:
    """Whether a run with these options computes in bf16 on a GPU."""
    device = choose_device(config.device)
    return device.type == "cuda" and choose_precision(config.precision, device, model) == "bf16"


def uses_bf16_matmuls(precision: str, device: torch.device) -> bool:
    """Whether training keeps float32 tensors and only matrix products are in bf16 (`bf16_linear.py`): on AMX CPUs."""
    return precision == "bf16" and device.type == "cpu" and torch.cpu._is_amx_tile_supported()


def matmul_precision(precision: str, device: torch.device) -> AbstractContextManager[None]:
    """Context manager for forward and backward pass: products of float32 tensors in bf16, if `uses_bf16_matmuls`."""
    return bf16_matmuls() if uses_bf16_matmuls(precision, device) else nullcontext()


def autocast(precision: Literal["fp32", "bf16", "fp16"], device: torch.device) -> AbstractContextManager[object]:
    """Return a context manager that computes in this precision. Parameters stay float32; fp32 changes nothing."""
    if precision == "fp32":
        return nullcontext()
    if uses_bf16_matmuls(precision, device):
        return matmul_precision(precision, device)
    return torch.autocast(device.type, dtype=torch.bfloat16 if precision == "bf16" else torch.float16)
