"""Compile the layers of a model for training, from outside: one compilation for all layers of a stack.

Whole models take minutes to compile, and longer with every layer. All layers of a stack run the same code with other
weights, so compiling one layer compiles them all. Shapes that change from batch to batch become variables at the
second shape, so that sorted translation batches cause one more compilation, not one per shape.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from glassformer.nn import Layer
from glassformer.runtime.compile_cache import separate_compile_cache

LONG = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
"""Attention kernels of long sequences on a GPU, the fastest first. torch takes the first that fits the inputs. cuDNN
plans for a while at every new shape, so it is for batches of constant shape."""
SHORT = [LONG[1], LONG[2], LONG[0], LONG[3]]
"""The same for short sequences, whose batches have many shapes."""


def compile_layers(model: nn.Module) -> None:
    """Compile all layers of a model, in place; `uncompile_layers` undoes it. Each is compiled at its first call."""
    separate_compile_cache()
    layers = [module for module in model.modules() if isinstance(module, Layer)]
    compiled: dict[type, Callable[..., Any]] = {}
    for layer in layers:
        kind = type(layer)
        if kind not in compiled:
            compiled[kind] = torch.compile(kind.forward)
        layer.forward = MethodType(compiled[kind], layer)  # type: ignore[method-assign]


def uncompile_layers(model: nn.Module) -> None:
    """Undo `compile_layers`."""
    for layer in model.modules():
        if isinstance(layer, Layer):
            layer.__dict__.pop("forward", None)


@contextmanager
def training_attention(device: torch.device, *, long: bool) -> Iterator[None]:
    """Context manager in which attention on a GPU uses the kernels that are fastest in training.

    `long` is for the windows of language models: long, and all of one length.
    """
    if device.type != "cuda":
        yield
        return
    with sdpa_kernel(LONG if long else SHORT, set_priority=True):
        yield
