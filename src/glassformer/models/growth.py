"""Grow a trained model in depth and width without changing what it computes (Chen et al. 2016, Net2Net).

| size that grows | how the outputs stay the same |
|---|---|
| layers | a new layer is a copy of the one before it, whose output projections are zero: x + 0 (pre-norm only) |
| d_ff, heads | the columns of the output projection that read a new unit or head are zero |
| head size | the new columns of a query are zero, and the queries are rescaled for the new √head_size |
| d_model | the residual stream holds several copies of the old one, so that its mean and variance stay the same |

A matrix that reads the copies has the old columns, divided by the number of copies, plus random numbers that sum to
zero over the copies. They cancel, and make the copies learn different things. `check_growth` refuses what would change
the outputs: no zero layer is the identity with post-norm, for example, because its norm still normalizes.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from glassformer.models.config import ModelConfig
from glassformer.models.factory import build_model
from glassformer.models.heads import LanguageModelHead
from glassformer.models.transformer import Model
from glassformer.nn import Embeddings, FeedForward, Layer, LearnedPositions, MultiHeadAttention, RelativeBias, Stack
from glassformer.nn.norms import MeanStdNorm, OffsetRMSNorm
from glassformer.nn.positions import alibi_slopes

AnyModel = TypeVar("AnyModel", bound=Model)
SIZES = ("n_encoder_layers", "n_decoder_layers", "d_model", "d_ff", "n_heads", "n_kv_heads", "head_dim")
"""Fields of the config that may grow."""
FREE = frozenset(
    {
        *("dropout", "attention_dropout", "activation_dropout", "embedding_dropout", "layer_drop"),
        *("init", "init_std", "expert_balance"),
    }
)
"""Fields of the config that may differ, because they matter in training only."""
RESOLVED = {"final_norm": "has_final_norm", "pooling": "pool_by"}
"""Property with the value of a field whose default, None, depends on other fields."""


@torch.no_grad()
def grow_model(small: AnyModel, config: ModelConfig) -> AnyModel:
    """Return a model of this `config` that computes the same outputs as `small`, up to rounding.

    The weights of new units and heads are drawn from torch's random numbers, as `config.init` says. A head that returns
    embeddings returns longer ones if `d_model` grows; their dot products stay the same. Raises ValueError if the config
    differs from that of `small` in more than sizes, or if a size cannot grow without changing the outputs.
    """
    check_growth(small.config, config)
    large: Any = build_model(config).to(next(small.parameters()).dtype)
    growth = _Growth(small.config, config)
    for name, part in small.named_children():
        other = getattr(large, name)
        if isinstance(part, Embeddings):
            growth.embeddings(part, other)
        elif isinstance(part, Stack):
            growth.stack(part, other)
        elif part is not None:
            growth.head(part, other)
    growth.rescale_tied_output(large)
    large.train(small.training)
    found: AnyModel = large
    return found


def check_growth(small: ModelConfig, large: ModelConfig) -> None:
    """Raise ValueError, naming the setting, unless `small` can grow to `large` without changing its outputs."""
    if small.kind != large.kind:
        raise ValueError(f"a model of kind {large.kind!r} cannot grow from one of kind {small.kind!r}")
    for field in fields(ModelConfig):
        name = field.name
        old, new = (getattr(config, RESOLVED.get(name, name)) for config in (small, large))
        if name not in (*SIZES, *FREE) and old != new:
            raise ValueError(f"{name}={new!r}: expected {old!r}, as the model to grow has it")
    for name, old, new in _sizes(small, large):
        if new < old:
            raise ValueError(f"{name}={new}: expected at least {old}, as the model to grow has it")
    if small.positions == "disentangled":
        raise ValueError("positions='disentangled': a model with this kind of positions cannot grow yet")
    for name in ("head_width", "conv_kernel"):
        if getattr(small, name) is not None:
            raise ValueError(f"{name}={getattr(small, name)}: a model with this setting cannot grow yet")
    if small.n_experts:
        raise ValueError(f"n_experts={small.n_experts}: a model with experts cannot grow yet")
    if not small.first_norm:
        raise ValueError("first_norm=False: a model with this setting cannot grow yet")
    _check_depth(small, large)
    _check_width(small, large)
    _check_heads(small, large)


def _sizes(small: ModelConfig, large: ModelConfig) -> Iterator[tuple[str, int, int]]:
    resolved = {"n_kv_heads": "kv_heads", "head_dim": "head_size"}
    for name in SIZES:
        old, new = (getattr(config, resolved.get(name, name)) for config in (small, large))
        yield name, old, new


def _check_depth(small: ModelConfig, large: ModelConfig) -> None:
    for name in ("n_encoder_layers", "n_decoder_layers"):
        old, new = getattr(small, name), getattr(large, name)
        if new == old:
            continue
        if small.norm_placement != "pre":
            raise ValueError(
                f"{name}={new}: a model with norm_placement={small.norm_placement!r} cannot grow from {old} layers "
                "without changing its outputs, because the norms of a new layer may change them. Expected "
                "norm_placement='pre'"
            )
        if small.share_layers:
            raise ValueError(
                f"{name}={new} with share_layers=True: a new layer would apply the shared weights once more. "
                f"Expected {old}, as the model to grow has it"
            )
        for setting in ("global_layers", "unrotated_layers"):
            if getattr(small, setting):
                raise ValueError(
                    f"{name}={new} with {setting}={getattr(small, setting)}: the attention of a layer depends on its "
                    f"number, which new layers change. Expected {old}, as the model to grow has it"
                )
        if small.scale_by_depth:
            raise ValueError(
                f"{name}={new} with scale_by_depth=True: the attention of a layer depends on its number, which new "
                f"layers change. Expected {old}, as the model to grow has it"
            )


def _check_width(small: ModelConfig, large: ModelConfig) -> None:
    if large.d_model == small.d_model:
        return
    if large.d_model % small.d_model:
        raise ValueError(
            f"d_model={large.d_model}: expected a multiple of {small.d_model}, the width of the model to grow, whose "
            "vectors are copied"
        )
    if small.positions == "sinusoidal" and small.embedding_width is None:
        raise ValueError(
            f"d_model={large.d_model} with positions='sinusoidal': the table of positions depends on the width. "
            f"Expected {small.d_model}, or a model with other positions"
        )
    is_tied = small.ties_output and not small.head_transform
    if is_tied and not small.norm_weight:
        raise ValueError(
            f"d_model={large.d_model} with tie={small.tie!r} and norm_weight=False: no norm before the output can be "
            f"rescaled. Expected {small.d_model}, as the model to grow has it"
        )
    if is_tied and not small.has_final_norm and (small.norm_placement == "pre" or small.share_layers):
        setting = "final_norm=False" if small.norm_placement == "pre" else "share_layers=True"
        raise ValueError(
            f"d_model={large.d_model} with tie={small.tie!r} and {setting}: no norm before the output can be rescaled. "
            f"Expected {small.d_model}, as the model to grow has it"
        )


def _check_heads(small: ModelConfig, large: ModelConfig) -> None:
    old, new = small.head_size, large.head_size
    if new != old and small.qk_norm:
        raise ValueError(
            f"head_dim={new} with qk_norm=True: the norm of a head depends on its size. Expected {old}, as in the "
            f"model to grow: give --head-dim {old}, or n_heads={large.d_model // old} for d_model={large.d_model}"
        )
    has_more = (small.n_heads, small.kv_heads) != (large.n_heads, large.kv_heads)
    if has_more and small.qk_norm and small.qk_norm_over == "all_heads":
        raise ValueError(
            f"n_heads={large.n_heads} and n_kv_heads={large.kv_heads} with qk_norm_over='all_heads': the norm depends "
            f"on the number of heads. Expected {small.n_heads} and {small.kv_heads}, as the model to grow has them"
        )
    turns_whole_head = small.positions == "rotary" and small.rope_width is None
    if new != old and turns_whole_head and small.rope_scaling != "none":
        raise ValueError(
            f"head_dim={new} with rope_scaling={small.rope_scaling!r}: the scaling depends on the size of a head. "
            f"Expected {old}, as the model to grow has it"
        )
    if new % old and turns_whole_head:
        raise ValueError(
            f"head_dim={new} with positions='rotary': expected a multiple of {old}, the head size of the model to grow"
        )
    _head_slots(small, large)


def _head_slots(small: ModelConfig, large: ModelConfig) -> tuple[list[int], list[list[int]]]:
    """Return the number that each old query head gets, and those of the copies of each old key-value head.

    The second list has one list per copy. Raises ValueError if there is no such place.
    """
    if small.positions == "alibi" and small.n_heads != large.n_heads:
        if small.kv_heads != small.n_heads or large.kv_heads != large.n_heads:
            raise ValueError(
                f"n_heads={large.n_heads} with positions='alibi' and n_kv_heads={large.kv_heads}: the slope of a head "
                f"depends on its number, and so do its keys. Expected {small.n_heads} heads, as the model to grow has"
            )
        slopes = alibi_slopes(large.n_heads)  # they include those of fewer heads
        slots = [slopes.index(slope) for slope in alibi_slopes(small.n_heads)]
        return slots, [slots]
    old_group, new_group = small.n_heads // small.kv_heads, large.n_heads // large.kv_heads
    copies = -(-old_group // new_group)  # a key-value head that serves fewer queries than before is copied
    if copies * small.kv_heads > large.kv_heads:
        raise ValueError(
            f"n_heads={large.n_heads} with n_kv_heads={large.kv_heads}: expected at least "
            f"{copies * small.kv_heads} key-value heads, so that each serves no other queries than before"
        )
    queries = []
    for head in range(small.n_heads):
        group, inside = divmod(head, old_group)
        queries.append((group * copies + inside // new_group) * new_group + inside % new_group)
    return queries, [[group * copies + copy for group in range(small.kv_heads)] for copy in range(copies)]


@dataclass(frozen=True)
class _Axis:
    """Where the elements of a dimension are in the grown model: `slots` (copies, old size) holds their new indices."""

    slots: Tensor

    @property
    def copies(self) -> int:
        return len(self.slots)

    def write(self, new: Tensor, old: Tensor) -> None:
        """Write `old` into all its places along the first dimension of `new`."""
        for places in self.slots:
            new[places] = old

    def read_by(self, weight: Tensor, fresh: Tensor) -> Tensor:
        """Return a matrix (rows, new size) that reads this dimension as `weight` (rows, old size) read the old one.

        `fresh` (rows, new size) holds new random weights.
        """
        wide = torch.zeros_like(fresh)
        mean = sum(fresh[:, places] for places in self.slots) / self.copies
        for places in self.slots:
            wide[:, places] = weight / self.copies + (fresh[:, places] - mean)
        return wide


def _same(size: int) -> _Axis:
    return _Axis(torch.arange(size)[None])


class _Growth:
    """Copies the weights of a model to a larger one, part by part."""

    def __init__(self, small: ModelConfig, large: ModelConfig):
        self.small, self.large = small, large
        copies = large.d_model // small.d_model
        self.model = _Axis(torch.arange(large.d_model).view(copies, small.d_model))
        self.table = self.model if small.embedding_width is None else _same(small.table_width)
        self.ff = _same(small.d_ff)
        self.token_scale = math.sqrt(small.table_width / large.table_width) if small.scale_embeddings else 1.0
        self.head_scale = math.sqrt(large.d_model / small.d_model) if small.scale_output else 1.0
        """Factor that replaces the smaller scale of the output of a wider model."""
        query_heads, kv_heads = _head_slots(small, large)
        self.bias_heads = torch.tensor(query_heads)
        self.queries = _Axis(self._columns(query_heads)[None])
        is_new = torch.zeros(large.n_heads, large.head_size, dtype=torch.bool)
        is_new[self.bias_heads] = True
        self.new_columns = is_new.flatten()
        self.new_columns[self.queries.slots[0]] = False
        """True for the columns that the old query heads get in addition."""
        self.keys = _Axis(torch.stack([self._columns(heads) for heads in kv_heads]))

    def _columns(self, heads: list[int]) -> Tensor:
        """Return the new columns of the old columns of some heads, which have these numbers now.

        Rotary positions turn column pairs (i, i + D/2), the more slowly the larger i: pair i of the old heads turns as
        fast as pair n · i of heads that are n times as large.
        """
        old, new = self.small.head_size, self.large.head_size
        inside = torch.arange(old)
        if self.small.positions == "rotary" and self.small.rope_width is None:
            inside = (inside % (old // 2)) * (new // old) + (inside >= old // 2) * (new // 2)
        return (torch.tensor(heads)[:, None] * new + inside).flatten()

    def linear(self, old: nn.Linear, new: nn.Linear, *, reads: _Axis, writes: _Axis, scale: float = 1.0) -> None:
        """Copy a linear layer that reads and writes these dimensions, and multiply its outputs by `scale`."""
        writes.write(new.weight, scale * reads.read_by(old.weight, new.weight[: len(old.weight)].clone()))
        if old.bias is not None:
            writes.write(new.bias, scale * old.bias)

    def norm(self, old: nn.Module | None, new: Any, axis: _Axis) -> None:
        """Copy a norm over this dimension. The unbiased deviation of `MeanStdNorm` grows with the number of copies."""
        if old is None:
            return
        width, copies = axis.slots.shape[1], axis.copies
        ratio = copies * (width - 1) / (copies * width - 1) if isinstance(old, MeanStdNorm) else 1.0
        for name, parameter in old.named_parameters():
            axis.write(new.get_parameter(name), parameter * (math.sqrt(ratio) if name == "weight" else 1.0))

    def embeddings(self, old: Embeddings, new: Any) -> None:
        """Copy the embedding tables, the norm and the projection."""
        self.table.write(new.tokens.weight.T, self.token_scale * old.tokens.weight.T)
        if old.token_types is not None:
            self.table.write(new.token_types.weight.T, old.token_types.weight.T)
        if isinstance(old.positions, LearnedPositions):
            self.table.write(new.positions.weight.T, old.positions.weight.T)
        self.norm(old.norm, new.norm, self.table)
        if isinstance(old.projection, nn.Linear):
            self.linear(old.projection, new.projection, reads=self.table, writes=self.model)

    def stack(self, old: Stack, new: Any) -> None:
        """Copy the layers, with new ones spread evenly between them, the final norm and the relative bias."""
        n_old, n_new = len(old.layers), len(new.layers)
        firsts = {index * n_new // n_old: index for index in range(n_old)}
        source = 0
        for index, layer in enumerate(new.layers):
            source = firsts.get(index, source)
            self.layer(old.layers[source], layer)
            if isinstance(old.score_bias, nn.ModuleList):
                new.score_bias[index].weight[:, self.bias_heads] = old.score_bias[source].weight
            if index not in firsts:
                _silence(layer)
        self.norm(old.norm, new.norm, self.model)
        if isinstance(old.score_bias, RelativeBias):
            new.score_bias.weight[:, self.bias_heads] = old.score_bias.weight

    def layer(self, old: Any, new: Any) -> None:
        """Copy the attention, the feed-forward network and the norms of a layer."""
        self.attention(old.self_attn, new.self_attn)
        self.sublayer(old.self_attn_sublayer, new.self_attn_sublayer)
        if old.cross_attn is not None:
            self.attention(old.cross_attn, new.cross_attn)
            self.sublayer(old.cross_attn_sublayer, new.cross_attn_sublayer)
        self.feed_forward(old.ffn, new.ffn)
        self.sublayer(old.ffn_sublayer, new.ffn_sublayer)

    def sublayer(self, old: Any, new: Any) -> None:
        """Copy the norms of a residual connection."""
        self.norm(old.norm, new.norm, self.model)
        self.norm(old.post_norm, new.post_norm, self.model)

    def attention(self, old: MultiHeadAttention, new: Any) -> None:
        """Copy the four projections and the norms of queries and keys."""
        scale = self.small.scale / self.large.scale
        self.linear(old.q_proj, new.q_proj, reads=self.model, writes=self.queries, scale=scale)
        new.q_proj.weight[self.new_columns] = 0
        self.linear(old.k_proj, new.k_proj, reads=self.model, writes=self.keys)
        self.linear(old.v_proj, new.v_proj, reads=self.model, writes=self.keys)
        self.linear(old.out_proj, new.out_proj, reads=self.queries, writes=self.model)
        for name in ("q_norm", "k_norm"):
            norm = getattr(old, name)
            if norm is not None:
                self.norm(norm, getattr(new, name), _same(next((len(one) for one in norm.parameters()), 0)))

    def feed_forward(self, old: FeedForward, new: Any) -> None:
        """Copy the two or three projections of a feed-forward network."""
        self.linear(old.up_proj, new.up_proj, reads=self.model, writes=self.ff)
        if old.gate_proj is not None:
            self.linear(old.gate_proj, new.gate_proj, reads=self.model, writes=self.ff)
        self.linear(old.down_proj, new.down_proj, reads=self.ff, writes=self.model)

    def head(self, old: Any, new: Any) -> None:
        """Copy a head. A tied output projection is copied with the embeddings."""
        is_language_model = isinstance(old, LanguageModelHead)
        width = self.model
        if getattr(old, "transform", None) is not None:
            width = self.table if is_language_model else self.model
            self.linear(old.transform.dense, new.transform.dense, reads=self.model, writes=width)
            self.norm(old.transform.norm, new.transform.norm, width)
        if not hasattr(old, "out_proj"):
            return
        if is_language_model and self.small.ties_output:
            if old.out_proj.bias is not None:
                new.out_proj.bias.copy_(old.out_proj.bias)
            return
        scale = self.head_scale if is_language_model else 1.0
        self.linear(old.out_proj, new.out_proj, reads=width, writes=_same(len(old.out_proj.weight)))
        new.out_proj.weight *= scale

    def rescale_tied_output(self, large: Any) -> None:
        """Scale the norm before a tied output projection, which would otherwise sum the copies of the hidden states."""
        if not self.small.ties_output:
            return
        factor = self.head_scale / (self.table.copies * self.token_scale)
        if large.head.transform is not None:
            norm = large.head.transform.norm
        else:
            stack = large.decoder if self.small.n_decoder_layers else large.encoder
            norm = stack.norm if stack.norm is not None else stack.layers[-1].ffn_sublayer.norm
        if factor != 1.0:
            for parameter in norm.parameters():
                parameter *= factor
            if isinstance(norm, OffsetRMSNorm):  # its parameter is the difference of the weight from 1
                norm.weight.add_(factor - 1)


def _silence(layer: Layer) -> None:
    """Set the output projections of a layer to zero, so that a pre-norm layer returns its input."""
    for module in layer.modules():
        if isinstance(module, MultiHeadAttention | FeedForward):
            last = module.out_proj if isinstance(module, MultiHeadAttention) else module.down_proj
            for parameter in last.parameters():
                parameter.zero_()
