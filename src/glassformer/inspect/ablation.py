"""Switch off parts of a model, and measure what changes: `ablate` for one run, `measure_heads` for every head."""

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.base.names import suggestion
from glassformer.inspect.recorder import activation_names, patch
from glassformer.models.transformer import Model
from glassformer.nn.disentangled_positions import RelativeVectors
from glassformer.nn.positions import Rotation

POSITIONS = "positions"
HEAD = re.compile(r"(?P<attention>.+_attn)\.head\.(?P<head>\d+)")


def ablation_names(model: Model) -> list[str]:
    """Return the parts of a model that can be switched off: heads, attentions, feed-forward networks, layers."""
    names = []
    for name in activation_names(model):
        owner, _, part = name.rpartition(".")
        if part == "heads":
            names += [f"{owner}.head.{head}" for head in range(model.config.n_heads)]
        elif part in ("act", "router") or (part == "weights" and owner.endswith("_attn")):
            names.append(owner)
        elif name.endswith(".resid.out"):
            names.append(name.removesuffix(".resid.out"))
    return names if model.config.positions == "none" else [*names, POSITIONS]


@contextmanager
def ablate(model: Model, names: Sequence[str]) -> Iterator[None]:
    """Context manager that switches off parts of a model in its block, by their names (`ablation_names`).

    A head's sum of values becomes zero, which equals zeroing its columns of the output projection. The output of an
    attention or a feed-forward network becomes zero, so that only the residual connection is left; a layer returns its
    input. Without "positions", the model cannot see the order of the tokens, except by its causal mask.
    """
    known = ablation_names(model) if names else []
    with ExitStack() as stack:
        for name in names:
            if name not in known:
                raise ValueError(f"the model has no part {name!r} to switch off: {suggestion(name, known)}")
            stack.enter_context(_without(model, name))
        yield


@contextmanager
def _without(model: Model, name: str) -> Iterator[None]:
    if name == POSITIONS:
        with _without_positions(model):
            yield
    elif found := HEAD.fullmatch(name):
        head = int(found["head"])

        def silence(heads: Tensor) -> Tensor:
            return heads.index_fill(1, torch.tensor([head], device=heads.device), 0.0)

        with patch(model, f"{found['attention']}.heads", silence):
            yield
    elif name.endswith((".self_attn", ".cross_attn", ".ffn")):
        with patch(model, f"{name}.out", torch.zeros_like):
            yield
    else:
        inputs: list[Tensor] = []

        def remember(x: Tensor) -> Tensor:
            inputs[:] = [x]
            return x

        with patch(model, f"{name}.resid.in", remember), patch(model, f"{name}.resid.out", lambda _: inputs[0]):
            yield


@contextmanager
def _without_positions(model: Model) -> Iterator[None]:
    handles = []
    for name, module in model.named_modules():
        owner, _, part = name.rpartition(".")
        is_bias = part == "score_bias" and not isinstance(module, nn.ModuleList)
        if part in ("positions", "rotary", "relative") or is_bias or owner.endswith(".score_bias"):
            handles.append(module.register_forward_hook(lambda *call: _neutral(call[-1])))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _neutral(value: Any) -> Any:
    """Return the output of a module of positions that says nothing about positions."""
    if isinstance(value, Rotation):
        amplitude = (value.cos.square() + value.sin.square()).sqrt()
        return Rotation(amplitude, torch.zeros_like(value.sin))
    if isinstance(value, RelativeVectors):
        return RelativeVectors(torch.zeros_like(value.table), value.rows)
    return torch.zeros_like(value)
