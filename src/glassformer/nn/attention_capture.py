"""Capture the attention weights of a model while it runs, without changing its outputs.

    with capture_attention(model, layers=[0, 5], heads=[2]) as captured:
        model(tokens)
    captured["encoder.layers.0.self_attn"]   # (B, 1, T, S)

The model keeps using its fused kernel. Forward hooks recompute the requested weights from the same queries and keys,
and are removed at the end of the block. Each forward pass adds one record per module, so decoding with a cache leaves
one record per step: `captured.steps(name)`.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.nn.attention_backends import Attend, masked_softmax
from glassformer.nn.masks import Mask


class CapturedAttention(Mapping[str, Tensor]):
    """Captured attention weights by module name, such as "encoder.layers.0.self_attn".

    Weights are (B, heads, queries, S), with only the heads and query positions that `capture_attention` was asked for.
    """

    def __init__(self) -> None:
        self._records: dict[str, list[Tensor]] = defaultdict(list)

    def __getitem__(self, name: str) -> Tensor:
        """Return the weights of the last forward pass of the module called `name`."""
        return self.steps(name)[-1]

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def steps(self, name: str) -> list[Tensor]:
        """Return the weights of every forward pass of the module called `name`, oldest first."""
        if name not in self._records:
            known = ", ".join(self._records) or "nothing, because no forward pass ran inside the block"
            raise KeyError(f"{name!r} was not captured; captured: {known}")
        return self._records[name]

    def add(self, name: str, weights: Tensor) -> None:
        """Append the weights of one forward pass of the module called `name`."""
        self._records[name].append(weights)


@contextmanager
def capture_attention(
    model: nn.Module,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    rows: Sequence[int] | None = None,
    kinds: Sequence[str] | None = None,
) -> Iterator[CapturedAttention]:
    """Context manager that records the attention weights of every forward pass in its block.

    It yields a `CapturedAttention`, which holds the weights on the CPU, without gradients. A layer that a whole stack
    shares (ALBERT) adds one record per application.

    Args:
        layers: Indices of the layers to capture; negative ones count from the end of each stack. None captures all.
        heads: Indices of the heads to capture; negative ones count from the end. None captures all.
        rows: Indices of the query positions to capture; negative ones count from the end. None captures all.
        kinds: Kinds of attention to capture: "self_attn", "cross_attn" or both. None captures all.

    >>> import torch
    >>> import glassformer as gf
    >>> model = gf.build_model(gf.preset("tiny-llama"))
    >>> with gf.capture_attention(model, layers=[0], heads=[1]) as weights:
    ...     _ = model(torch.tensor([[5, 6, 7]]))
    >>> weights["decoder.layers.0.self_attn"].shape  # batch, heads, queries, keys
    torch.Size([1, 1, 3, 3])
    """
    captured = CapturedAttention()
    for what, indices in (("heads", heads), ("rows", rows)):
        if indices is not None and not len(indices):
            raise ValueError(f"{what}={indices!r}: expected at least one, or None for all")
    handles = [
        module.register_forward_hook(partial(_record, captured, name, heads, rows), with_kwargs=True)
        for name, module in _choose(model, layers, kinds).items()
    ]
    try:
        yield captured
    finally:
        for handle in handles:
            handle.remove()


def _choose(model: nn.Module, layers: Sequence[int] | None, kinds: Sequence[str] | None) -> dict[str, Attend]:
    """Return the `Attend` modules to hook, keyed by the name of the attention module that contains each."""
    found = {n.removesuffix(".attend"): m for n, m in model.named_modules() if isinstance(m, Attend)}
    stacks = {name: match.groups() for name in found if (match := re.search(r"(.*layers)\.(\d+)\.", name))}
    depths: dict[str, int] = {}  # of each stack: an encoder may have more layers than its decoder
    for stack, number in stacks.values():
        depths[stack] = max(depths.get(stack, 0), int(number) + 1)
    depth = max(depths.values(), default=0)
    for layer in layers or ():
        if not -depth <= layer < depth:
            raise IndexError(f"layers holds {layer}: expected {-depth} to {depth - 1}")

    def is_wanted(name: str) -> bool:
        if layers is None or name not in stacks:
            return layers is None
        stack, number = stacks[name]
        return any(int(number) == (layer if layer >= 0 else depths[stack] + layer) for layer in layers)

    chosen = {
        name: module
        for name, module in found.items()
        if (kinds is None or name.rpartition(".")[2] in kinds) and is_wanted(name)
    }
    if not chosen:
        raise ValueError(
            f"layers={layers!r}, kinds={kinds!r} match no attention module; "
            f"this model has: {', '.join(found) or 'none'}"
        )
    return chosen


@torch.no_grad()
def _record(
    captured: CapturedAttention,
    name: str,
    heads: Sequence[int] | None,
    rows: Sequence[int] | None,
    module: Attend,
    args: tuple[Tensor, Tensor, Tensor],
    kwargs: dict[str, Any],
    output: Tensor,
) -> None:
    if torch._C._current_graph_task_id() != -1:
        return  # gradient checkpointing repeats the layer in the backward pass; it is already recorded
    q, k, _ = args
    mask, bias = kwargs["mask"], kwargs["bias"]
    allowed = (Mask() if mask is None else mask).dense(q.shape[2], k.shape[2], q.device)
    if heads is not None:
        chosen = _resolve("heads", heads, q.shape[1])
        group = q.shape[1] // k.shape[1]
        k = k[:, [head // group for head in chosen]]
        q, bias, allowed = (_pick(x, 1, chosen) for x in (q, bias, allowed))
    if rows is not None:
        chosen = _resolve("rows", rows, q.shape[2])
        q, bias, allowed = (_pick(x, 2, chosen) for x in (q, bias, allowed))
    captured.add(name, masked_softmax(q, k, allowed, bias, module.scale, module.softcap).cpu())


def _resolve(name: str, indices: Sequence[int], size: int) -> list[int]:
    for index in indices:
        if not -size <= index < size:
            raise IndexError(f"{name} holds {index}: expected {-size} to {size - 1}")
    return [index % size for index in indices]


def _pick(x: Any, dim: int, chosen: list[int]) -> Any:
    """Return the entries of the tensor x at the indices `chosen` along dimension `dim`.

    If x is None, or has size 1 along that dimension and so broadcasts, it is returned unchanged.
    """
    return x if x is None or x.shape[dim] == 1 else x[(slice(None),) * dim + (chosen,)]
