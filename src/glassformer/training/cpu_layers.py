"""Layers of a model that are trained on a CPU by our C++ kernels (`kernels/cpu_training.py`). Activations are float32.

Attention of at most `MAX_LENGTH` tokens is one operation between its projections, with norms of heads and rotary
positions. Gated SiLU is one operation. A ReLU and its gradient replace their input in memory. Dropout, residual sum and
norm are one operation (`cpu_sublayer.py`). A token embedding that is tied to the output layer has a sparse gradient.
Layers with other settings, such as dropout of attention weights, stay plain. Results are equal up to rounding, but
dropout has other random numbers than in plain layers.

Linear layers with the same input are one operation (`linear_group.py`). With `in_bf16`, AMX kernels compute the linear
layers (`bf16_linear.py`).

The layers are replaced from outside, and only while a batch is computed (`CpuLayers.active`).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from glassformer.kernels.cpu_training import MAX_LENGTH, AttentionRules
from glassformer.nn import FeedForward, Mask, MultiHeadAttention, Sublayer
from glassformer.nn.dropout import Dropout
from glassformer.nn.positions import Rotation
from glassformer.training.bf16_linear import bf16_linear, bf16_linears, is_trained
from glassformer.training.cpu_functions import (
    AttendRows,
    Drop,
    ReluDropout,
    SiluGate,
    TiedLookup,
    dropout_seed,
    has_hooks,
    is_float32,
    norm_name,
)
from glassformer.training.cpu_sublayer import can_replace_sublayer, compute_sublayer
from glassformer.training.fused_loss import with_cpu_kernel
from glassformer.training.linear_group import linear_group


class CpuLayers:
    """The layers of a model that our kernels can compute, by the functions that replace their forward passes."""

    def __init__(self, model: nn.Module, *, in_bf16: bool = False):
        self.in_bf16 = in_bf16
        self._angles: tuple[Tensor, tuple[Tensor, Tensor]] | None = None
        self._output_weights = {id(module.weight) for module in model.modules() if type(module) is nn.Linear}
        self.replaced: dict[nn.Module, Callable[..., Tensor]] = {}
        """Every replaced layer with its new forward pass."""
        for module in model.modules():
            if "forward" not in vars(module) and (forward := self._forward_of(module)) is not None:
                self.replaced[module] = partial(forward, module)

    def in_words(self) -> str:
        """Return what the kernels compute in this model, for the log. It is empty if they compute nothing."""
        names = {
            nn.Linear: "linear layers in bf16",
            MultiHeadAttention: f"attention (of up to {MAX_LENGTH} tokens, without score bias or window)",
            FeedForward: "activations",
            Sublayer: "residual connections",
            Dropout: "dropout",
        }
        kinds = {type(module) for module in self.replaced}
        return ", ".join(name for kind, name in names.items() if kind in kinds)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Context manager for the forward and backward pass of a batch: the layers are replaced, and so is the loss.

        Until its end, the gradient of a tied token embedding may be sparse.
        """
        for module, forward in self.replaced.items():
            vars(module)["forward"] = forward  # ten times as fast as setting an attribute of a module
        try:
            with with_cpu_kernel(in_bf16=self.in_bf16):
                yield
        finally:
            for module in self.replaced:
                del vars(module)["forward"]
                _make_dense(module)

    def _forward_of(self, module: nn.Module) -> Callable[..., Tensor] | None:
        if type(module) is MultiHeadAttention and _can_attend(module) and not module.attend.dropout:
            return self._attention
        if type(module) is FeedForward and module.gate_up_proj is None:
            if module.gate_proj is not None:
                return self._gated_feedforward if module.activation == "silu" else None
            is_replaced = "forward" in vars(module.dropout)
            return _relu_feedforward if module.activation == "relu" and not is_replaced else None
        if type(module) is nn.Linear:
            return bf16_linear if self.in_bf16 and is_trained(module) else None
        if type(module) is Sublayer:
            return compute_sublayer if can_replace_sublayer(module) else None
        if type(module) is nn.Embedding:
            return _look_up if id(module.weight) in self._output_weights and _is_plain_table(module) else None
        return _dropout if type(module) is Dropout and module.p else None

    def _attention(
        self,
        attention: MultiHeadAttention,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        mask: Mask | None = None,
        rotation: Rotation | None = None,
        **others: Any,
    ) -> Tensor:
        """Return the output of the attention layer, by one operation between its projections where it can be."""
        keys = query if key is None else key
        rules = _rules(attention, mask)
        is_short = max(query.shape[1], keys.shape[1]) <= MAX_LENGTH and len(query) == len(keys)
        is_plain = value is None and all(argument is None for argument in others.values())
        if rules is None or not is_short or not is_plain or not is_float32(query, keys) or _is_watched(attention):
            others |= {"mask": mask, "rotation": rotation}
            return MultiHeadAttention.forward(attention, query, key, value, **others)
        if rotation is not None:
            cos, sin = self._tables(rotation)
            rules = replace(rules, cos=cos, sin=sin)
        if key is None:
            rows = self._project(query, attention.q_proj, attention.k_proj, attention.v_proj)
        else:
            rows = [attention.q_proj(query), *self._project(keys, attention.k_proj, attention.v_proj)]
        norms = (getattr(norm, name, None) for norm in (attention.q_norm, attention.k_norm) for name in _PARAMETERS)
        mixed: Tensor = AttendRows.apply(*rows, *norms, rules)  # type: ignore[no-untyped-call]
        return attention.out_proj(mixed)

    def _gated_feedforward(self, ffn: FeedForward, x: Tensor, kernels: Any = None) -> Tensor:
        if not is_float32(x) or ffn.gate_proj is None:
            return FeedForward.forward(ffn, x, kernels)
        hidden: Tensor = SiluGate.apply(*self._project(x, ffn.gate_proj, ffn.up_proj))  # type: ignore[no-untyped-call]
        return ffn.down_proj(ffn.dropout(hidden))

    def _project(self, x: Tensor, *layers: nn.Module) -> list[Tensor]:
        """Return the results of linear layers for one input, by one operation where that is possible."""
        if self.in_bf16:
            are_replaced = all(layer in self.replaced and not has_hooks(layer) for layer in layers)
            found = bf16_linears(x, layers) if are_replaced else None
        else:
            found = linear_group(x, layers)
        return [layer(x) for layer in layers] if found is None else found

    def _tables(self, rotation: Rotation) -> tuple[Tensor, Tensor]:
        """Return cosines and sines in the form of the kernels, computed once for all layers that share a rotation."""
        if self._angles is None or self._angles[0] is not rotation.cos:
            cos, sin = (table[:, 0].float().contiguous() for table in rotation)
            self._angles = rotation.cos, (cos, sin)
        return self._angles[1]


_PARAMETERS = "weight", "bias"


def _can_attend(attention: MultiHeadAttention) -> bool:
    """Whether the kernels know the head norms and the kind of scores of an attention layer."""
    attend, norms = attention.attend, (attention.q_norm, attention.k_norm)
    parts = (attend, *(norm for norm in norms if norm is not None))
    is_replaced = any("forward" in vars(part) for part in parts)
    is_plain = not is_replaced and attention.clip_qkv is None and attend.softcap is None and attend.backend == "sdpa"
    is_joined = attention.qkv_proj is not None or attention.kv_proj is not None
    has_norms = any(norm is not None for norm in norms)
    is_known = not has_norms or (all(norm_name(norm) for norm in norms) and not attention.norms_all_heads)
    return is_plain and is_known and not is_joined


def _rules(attention: MultiHeadAttention, mask: Mask | None) -> AttentionRules | None:
    """Return the rules of an attention layer with this mask, or None if the kernels cannot compute it."""
    real, causal = None, False
    if mask is not None:
        if not all(rule is None for rule in (mask.window, mask.key_segments, mask.allowed)):
            return None
        real, causal = mask.real, mask.causal
    norm: Any = attention.q_norm
    return AttentionRules(
        n_heads=attention.n_heads,
        n_groups=attention.n_kv_heads,
        scale=attention.attend.scale,
        causal=causal,
        real=None if real is None else real.contiguous(),
        norm=norm_name(norm),
        eps=0.0 if norm is None else norm.eps,
    )


def _is_watched(attention: MultiHeadAttention) -> bool:
    """Whether hooks want to see what the kernels do not compute, such as the attention weights."""
    parts = (part for part in (attention.attend, attention.q_norm, attention.k_norm) if part is not None)
    return any(map(has_hooks, parts))


def _relu_feedforward(ffn: FeedForward, x: Tensor, kernels: Any = None) -> Tensor:
    parts = ffn.up_proj, ffn.dropout, ffn.down_proj  # their hooks may keep what is replaced in memory
    is_plain = type(ffn.up_proj) is type(ffn.down_proj) is nn.Linear and not any(map(has_hooks, parts))
    if not is_plain or not is_float32(x):
        return FeedForward.forward(ffn, x, kernels)
    # Two dimensions: a linear layer with more returns a view, and autograd copies views that are changed in place.
    hidden = ffn.up_proj(x.flatten(0, -2))
    drops = type(ffn.dropout) is Dropout and ffn.dropout.training and ffn.dropout.p > 0
    p, seed = (ffn.dropout.p, dropout_seed()) if drops else (0.0, 0)
    hidden = ReluDropout.apply(hidden, p, seed)  # type: ignore[no-untyped-call]
    return ffn.down_proj(hidden if drops else ffn.dropout(hidden)).view(x.shape)


def _is_plain_table(table: nn.Embedding) -> bool:
    has_rules = table.sparse or table.scale_grad_by_freq or not (table.padding_idx is table.max_norm is None)
    return table.weight.requires_grad and not has_rules


def _look_up(table: nn.Embedding, ids: Tensor) -> Tensor:
    if not is_float32(table.weight) or not _is_plain_table(table):
        return nn.Embedding.forward(table, ids)
    rows: Tensor = TiedLookup.apply(ids, table.weight)  # type: ignore[no-untyped-call]
    return rows


def _make_dense(module: nn.Module) -> None:
    """Make the gradient of a tied table dense. It is sparse if the output layer was not used."""
    if type(module) is nn.Embedding and module.weight.grad is not None and module.weight.grad.is_sparse:
        module.weight.grad = module.weight.grad.to_dense()


def _dropout(dropout: Dropout, x: Tensor) -> Tensor:
    if not dropout.training or not is_float32(x):
        return Dropout.forward(dropout, x)
    dropped: Tensor = Drop.apply(x, dropout.p, dropout_seed())  # type: ignore[no-untyped-call]
    return dropped
