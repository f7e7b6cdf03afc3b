"""Record and replace the activations of a model by name, without changing the model.

    with gf.record(model, "decoder.layers.*.self_attn.weights") as recorded:
        model(tokens)
    recorded["decoder.layers.0.self_attn.weights"]   # (B, H, T, S)

    with gf.patch(model, "decoder.layers.0.ffn.out", lambda x: x * 0):
        model(tokens)                                # as if the layer had no feed-forward network

`activation_names` lists the names of a model. Below, X is the name of an attention module, such as
`encoder.layers.0.self_attn`, and L the name of a layer, such as `encoder.layers.0`:

| name | activation | shape |
|---|---|---|
| `X.in`, `X.out` | input and output of the attention, before the residual sum | (B, T, C) |
| `X.q`, `X.k`, `X.v` | queries, keys and values, after norms and rotary positions | (B, H or G, T or S, D) |
| `X.weights` | attention weights | (B, H, T, S) |
| `X.heads` | each head's weighted sum of values, before the output projection | (B, H, T, D) |
| `L.ffn.in`, `L.ffn.out` | input and output of the feed-forward network | (B, T, C) |
| `L.ffn.act` | the values inside it, after the activation function (and the gate) | (B, T, F) |
| `L.ffn.router` | in place of `act` in a layer with experts: the scores of the experts | (B, T, experts) |
| `L.resid.in`, `L.resid.out` | input and output of the layer | (B, T, C) |
| `L.resid.mid` | after self-attention, if not parallel; `L.resid.cross` after cross-attention | (B, T, C) |
| `embeddings.out`, `source_embeddings.out`, `target_embeddings.out` | input of the first layer | (B, T, C) |
| `encoder.out`, `decoder.out` | output of a stack, after its final norm | (B, T, C) |
| `head.out` | output of the head, such as logits | (B, T, V) |

The model computes with its fused attention kernel: forward hooks recompute the weights from the same queries and keys.
While hooks are attached, decoding takes plain steps instead of compiled or recorded ones (`runtime/choose_runner.py`).
"""

import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.base.checks import shown
from glassformer.base.names import suggestion
from glassformer.models.transformer import Model
from glassformer.nn import Stack
from glassformer.nn.attention_backends import attention_weights
from glassformer.nn.expert_feedforward import ExpertFeedForward
from glassformer.nn.layers import Layer
from glassformer.nn.masks import Mask
from glassformer.nn.multi_head_attention import MultiHeadAttention, fold_rows, unfold_rows

PatchFunction = Callable[[Tensor], Tensor]
ATTENTION_PARTS = ("in", "q", "k", "v", "weights", "heads", "out")
STACKS = ("encoder", "decoder")
EMBEDDINGS = ("embeddings", "source_embeddings", "target_embeddings")


class RecordedActivations(Mapping[str, Tensor]):
    """Recorded activations by name. `recorded[name]` is the value of the last forward pass in the block.

    Values are copies on the CPU, without gradients.
    """

    def __init__(self) -> None:
        self._steps: dict[str, list[Tensor]] = defaultdict(list)

    def __getitem__(self, name: str) -> Tensor:
        return self.steps(name)[-1]

    def __iter__(self) -> Iterator[str]:
        return iter(self._steps)

    def __len__(self) -> int:
        return len(self._steps)

    def steps(self, name: str) -> list[Tensor]:
        """Return the values of every forward pass, oldest first. Decoding with a cache leaves one for each step."""
        if name not in self._steps:
            known = ", ".join(self._steps) or "nothing, because no forward pass ran inside the block"
            raise KeyError(f"{name!r} was not recorded; recorded: {known}")
        return self._steps[name]

    def add(self, name: str, value: Tensor) -> None:
        """Append the value of one forward pass."""
        self._steps[name].append(value.detach().to("cpu", copy=True))


@contextmanager
def record(model: nn.Module, *patterns: str) -> Iterator[RecordedActivations]:
    """Context manager that records the activations whose names match a pattern, in every forward pass of its block.

    A pattern may contain `*`: "encoder.layers.*.self_attn.weights". The outputs of the model do not change.

    >>> import torch
    >>> import glassformer as gf
    >>> model = gf.build_model(gf.preset("tiny-llama"))
    >>> with gf.record(model, "decoder.layers.*.self_attn.weights", "head.out") as recorded:
    ...     _ = model(torch.tensor([[5, 6, 7]]))
    >>> recorded["decoder.layers.1.self_attn.weights"].shape  # batch, heads, queries, keys
    torch.Size([1, 4, 3, 3])
    """
    recorded = RecordedActivations()
    with record_into(recorded, model, *patterns):
        yield recorded


@contextmanager
def record_into(recorded: RecordedActivations, model: nn.Module, *patterns: str) -> Iterator[None]:
    """Record as `record` does into an object of the caller, whose `add` may keep less than the whole activation."""
    if not patterns:
        raise ValueError("record was given no pattern: expected names such as 'decoder.layers.*.self_attn.weights'")
    chosen = {name for pattern in patterns for name in match_names(model, pattern)}
    with _watching(model) as watcher:
        entry = (chosen, recorded)
        watcher.records.append(entry)
        try:
            yield
        finally:
            watcher.records = [one for one in watcher.records if one is not entry]


@contextmanager
def patch(model: nn.Module, pattern: str, value: Tensor | PatchFunction) -> Iterator[None]:
    """Context manager that replaces the activations whose names match a pattern, in every forward pass of its block.

    `value` is a tensor of the activation's shape, or a function that takes the activation and returns its replacement.
    The function must not change its argument in place. Later patches of a name get the result of earlier ones, and
    `record` sees the replaced values.

    >>> import torch
    >>> import glassformer as gf
    >>> model, tokens = gf.build_model(gf.preset("tiny-llama")), torch.tensor([[5, 6, 7]])
    >>> def without_head_1(heads):  # (B, H, T, D)
    ...     return heads * torch.tensor([1.0, 0.0, 1.0, 1.0])[:, None, None]
    >>> with gf.patch(model, "decoder.layers.0.self_attn.heads", without_head_1):
    ...     logits = model(tokens)
    """
    chosen = set(match_names(model, pattern))
    replace: PatchFunction = (lambda _: value) if isinstance(value, Tensor) else value
    if not callable(replace):
        raise TypeError(f"value is {shown(value)}: expected a tensor, or a function that takes and returns one")
    with _watching(model) as watcher:
        entry = (chosen, replace)
        watcher.patches.append(entry)
        try:
            yield
        finally:
            watcher.patches = [one for one in watcher.patches if one is not entry]


def activation_names(model: nn.Module) -> list[str]:
    """Return the names of all activations of a model, in the order in which they are computed."""
    if not isinstance(model, Model):
        raise TypeError(f"model is a {type(model).__name__}: expected an encoder, decoder or encoder-decoder")
    names = []
    for kind in STACKS:
        stack = getattr(model, kind, None)
        if not isinstance(stack, Stack):
            continue
        side = {"encoder": "source_embeddings", "decoder": "target_embeddings"}[kind]
        names.append(f"{side if hasattr(model, side) else 'embeddings'}.out")
        for index in range(stack.depth):
            layer = stack.layers[index % len(stack.layers)]
            assert isinstance(layer, Layer)
            prefix = f"{kind}.layers.{index}"
            names += [f"{prefix}.resid.in", *(f"{prefix}.self_attn.{part}" for part in ATTENTION_PARTS)]
            if layer.parallel == "none":  # otherwise both parts are added at once
                names.append(f"{prefix}.resid.mid")
            if layer.cross_attn is not None:
                names += [*(f"{prefix}.cross_attn.{part}" for part in ATTENTION_PARTS), f"{prefix}.resid.cross"]
            inside = "router" if isinstance(layer.ffn, ExpertFeedForward) else "act"
            names += [*(f"{prefix}.ffn.{part}" for part in ("in", inside, "out")), f"{prefix}.resid.out"]
        names.append(f"{kind}.out")
    return names if model.head is None else [*names, "head.out"]


def match_names(model: nn.Module, pattern: str) -> list[str]:
    """Return the names of activations that match a pattern, in which `*` stands for any text. Raise if none does."""
    names = activation_names(model)
    found = [name for name in names if fnmatchcase(name, pattern)]
    if not found:
        raise ValueError(f"no activation is named {pattern!r}: {suggestion(pattern, names)}")
    return found


_WATCHERS: "weakref.WeakKeyDictionary[nn.Module, _Watcher]" = weakref.WeakKeyDictionary()
"""The hooks of models that are being recorded or patched."""


@contextmanager
def _watching(model: nn.Module) -> Iterator["_Watcher"]:
    """Yield the watcher of a model, whose hooks are attached until the last block around it ends."""
    watcher = _WATCHERS.get(model)
    if watcher is None:
        watcher = _WATCHERS[model] = _Watcher(model)
    watcher.n_users += 1
    try:
        yield watcher
    finally:
        watcher.n_users -= 1
        if not watcher.n_users:
            _WATCHERS.pop(model, None)
            watcher.remove()


class _Watcher:
    """The forward hooks of one model. Each passes an activation to the patches of its name, then to the records."""

    def __init__(self, model: nn.Module):
        self.n_users = 0
        self.patches: list[tuple[set[str], PatchFunction]] = []
        self.records: list[tuple[set[str], RecordedActivations]] = []
        self._handles: list[Any] = []
        for name in EMBEDDINGS:
            if hasattr(model, name):
                self._watch_output(getattr(model, name), f"{name}.out".format)
        for kind in STACKS:
            if isinstance(stack := getattr(model, kind, None), Stack):
                self._watch_stack(kind, stack)
        if isinstance(head := getattr(model, "head", None), nn.Module):
            self._watch_output(head, lambda: "head.out")

    def remove(self) -> None:
        """Remove all hooks."""
        for handle in self._handles:
            handle.remove()

    def is_wanted(self, name: str) -> bool:
        """Return whether the activation is patched or recorded."""
        return any(name in names for names, _ in (*self.patches, *self.records))

    def see(self, name: str, value: Tensor) -> Tensor:
        """Return the activation as the patches change it, after recording it."""
        for names, replace in self.patches:
            if name in names:
                new = replace(value)
                if not isinstance(new, Tensor) or new.shape != value.shape:
                    what = tuple(new.shape) if isinstance(new, Tensor) else shown(new)
                    raise ValueError(f"the patch of {name} gives {what}: expected a tensor {tuple(value.shape)}")
                value = new.to(value)
        # Gradient checkpointing repeats a layer in the backward pass; its values are already recorded.
        if torch._C._current_graph_task_id() == -1:
            for names, recorded in self.records:
                if name in names:
                    recorded.add(name, value)
        return value

    def _watch_stack(self, kind: str, stack: Stack) -> None:
        is_shared = len(stack.layers) < stack.depth
        current = [-1]

        def start(*_: Any) -> None:
            if is_shared and stack.training and (stack.layer_drop or stack.gradient_checkpointing):
                raise ValueError("layers that share weights are recorded without layer drop and checkpointing only")
            current[0] = -1

        self._handles.append(stack.register_forward_pre_hook(start))
        self._watch_output(stack, lambda: f"{kind}.out")
        for index, layer in enumerate(stack.layers):

            def prefix(index: int = index) -> str:
                return f"{kind}.layers.{current[0] if is_shared else index}"

            assert isinstance(layer, Layer)
            self._watch_layer(layer, prefix, current)

    def _watch_layer(self, layer: Layer, prefix: Callable[[], str], current: list[int]) -> None:
        def enter(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            current[0] += 1
            return (self.see(f"{prefix()}.resid.in", args[0]), *args[1:])

        self._handles.append(layer.register_forward_pre_hook(enter))
        self._watch_attention(layer.self_attn, lambda: f"{prefix()}.self_attn")
        self._watch_output(layer.self_attn_sublayer, lambda: f"{prefix()}.resid.mid")
        if layer.cross_attn is not None:
            assert layer.cross_attn_sublayer is not None
            self._watch_attention(layer.cross_attn, lambda: f"{prefix()}.cross_attn")
            self._watch_output(layer.cross_attn_sublayer, lambda: f"{prefix()}.resid.cross")
        self._watch_input(layer.ffn, lambda: f"{prefix()}.ffn.in")
        if isinstance(layer.ffn, ExpertFeedForward):
            self._watch_output(layer.ffn.router, lambda: f"{prefix()}.ffn.router")
        else:
            self._watch_input(layer.ffn.down_proj, lambda: f"{prefix()}.ffn.act")
        self._watch_output(layer.ffn, lambda: f"{prefix()}.ffn.out")
        self._watch_output(layer, lambda: f"{prefix()}.resid.out")

    def _watch_attention(self, attention: MultiHeadAttention, prefix: Callable[[], str]) -> None:
        n_rows = [0]

        def note_rows(_: nn.Module, args: tuple[Tensor, ...]) -> None:
            n_rows[0] = args[0].shape[0]

        def before(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            name, q = prefix(), args[0]
            folded = q.shape[0] < n_rows[0]  # the hypotheses of a beam are queries of one row (`fold_rows`)
            new = self.see(f"{name}.q", unfold_rows(q, n_rows[0]) if folded else q)
            q = fold_rows(new, q.shape[0]) if folded else new
            return (q, self.see(f"{name}.k", args[1]), self.see(f"{name}.v", args[2]))

        def after(module: Any, args: tuple[Tensor, ...], kwargs: dict[str, Any], output: Tensor) -> Tensor:
            name, (q, k, v) = prefix(), args
            folded = q.shape[0] < n_rows[0]
            if self.is_wanted(f"{name}.weights"):
                mask = Mask() if kwargs["mask"] is None else kwargs["mask"]
                weights = attention_weights(
                    q, k, mask=mask, bias=kwargs["bias"], scale=module.scale, softcap=module.softcap
                )
                shown_weights = unfold_rows(weights, n_rows[0]) if folded else weights
                new = self.see(f"{name}.weights", shown_weights)
                if new is not shown_weights:
                    weights = fold_rows(new, q.shape[0]) if folded else new
                    group = q.shape[1] // v.shape[1]
                    output = weights @ v.to(weights.dtype).repeat_interleave(group, dim=1)
            new = self.see(f"{name}.heads", unfold_rows(output, n_rows[0]) if folded else output)
            return fold_rows(new, q.shape[0]) if folded else new

        self._watch_input(attention, lambda: f"{prefix()}.in")
        self._handles.append(attention.register_forward_pre_hook(note_rows))
        self._handles.append(attention.attend.register_forward_pre_hook(before))
        self._handles.append(attention.attend.register_forward_hook(after, with_kwargs=True))
        self._watch_output(attention, lambda: f"{prefix()}.out")

    def _watch_input(self, module: nn.Module, name: Callable[[], str]) -> None:
        def hook(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return (self.see(name(), args[0]), *args[1:])

        self._handles.append(module.register_forward_pre_hook(hook))

    def _watch_output(self, module: nn.Module, name: Callable[[], str]) -> None:
        self._handles.append(module.register_forward_hook(lambda *call: self.see(name(), call[-1])))
