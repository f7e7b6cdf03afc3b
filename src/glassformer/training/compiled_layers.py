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
import torch._functorch.config as functorch_config
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from glassformer.nn import Layer, Stack
from glassformer.nn.attention_backends import Attend
from glassformer.nn.dropout import Dropout
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


KEPT_SHARE = 0.05
"""The share of a layer's results that the compiler may store with gradient checkpointing, besides the layer's input. It
stores those that save most. On an H200 a Llama of 1.1 billion parameters takes 259 ms per update with this share and
261 ms with none, and as much memory."""


def compile_layers(model: nn.Module, *, in_processes: bool = False) -> None:
    """Compile all layers of a model, in place; `uncompile_layers` undoes it. Each is compiled at its first call.

    With gradient checkpointing, a layer's forward pass and its repetition are compiled together: then the backward pass
    repeats only what it needs and what is not among the few stored results (`KEPT_SHARE`). Other models repeat whole
    layers: those with dropout, because the compiler would store most results of a layer or drop other elements in the
    repetition, and those trained `in_processes`, where a repeated layer may gather its weights again.
    """
    separate_compile_cache()
    compiled: dict[object, Callable[..., Any]] = {}
    for stack in [module for module in model.modules() if isinstance(module, Stack)]:
        repeats = stack.gradient_checkpointing and not in_processes and not _has_dropout(stack)
        if repeats:  # the compiled layers do it themselves
            stack.gradient_checkpointing, stack.__dict__["has_compiled_checkpointing"] = False, True
        for layer in stack.layers:
            key = type(layer), repeats
            if key not in compiled:
                forward = type(layer).forward
                compiled[key] = _compile_checkpointed(forward) if repeats else torch.compile(forward)
            layer.forward = MethodType(compiled[key], layer)


def uncompile_layers(model: nn.Module) -> None:
    """Undo `compile_layers`."""
    for module in model.modules():
        if isinstance(module, Layer):
            module.__dict__.pop("forward", None)
        elif isinstance(module, Stack) and module.__dict__.pop("has_compiled_checkpointing", False):
            module.gradient_checkpointing = True


def _compile_checkpointed(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return `forward`, without dropout, compiled so that the backward pass repeats it instead of reading results."""

    @torch.compile
    def compiled(layer: nn.Module, x: Tensor, **inputs: Any) -> Tensor:
        return forward(layer, x, **inputs)  # torch caches compiled code by function: `forward` itself has other code

    def run(layer: nn.Module, x: Tensor, **inputs: Any) -> Tensor:
        with functorch_config.patch(activation_memory_budget=KEPT_SHARE):
            return compiled(layer, x, **inputs)

    return run


def _has_dropout(stack: nn.Module) -> bool:
    modules = list(stack.modules())
    rates = [module.p for module in modules if isinstance(module, Dropout)]
    return any([*rates, *(module.dropout for module in modules if isinstance(module, Attend))])


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
