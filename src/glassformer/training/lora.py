"""Low-rank adapters (LoRA, Hu et al. 2021): train a few parameters of a frozen model, then merge them into its weights.

An adapted layer computes W x + scale * up (down x), with W frozen and `up` zero at first. W may have 8 or 4 bits
(`frozen_linear.py`). The adapters are put on from outside: the model knows nothing about them, and after
`merge_adapters` it is a plain model again. A layer may have several adapters, each with a name and a weight.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.nn.feedforward import FeedForward
from glassformer.nn.multi_head_attention import MultiHeadAttention
from glassformer.training.frozen_linear import FrozenBits, FrozenLinear
from glassformer.training.train_config import TrainConfig

DEFAULT = "default"
"""The name of the adapter that is trained, as in PEFT."""


class LowRank(nn.Module):
    """The LoRA adapter of one linear layer: it adds weight * scale * up (down x) to the layer's output."""

    def __init__(self, n_in: int, n_out: int, rank: int, scale: float, *, like: Tensor):
        super().__init__()
        self.scale, self.weight = scale, 1.0
        self.down = nn.Parameter(like.new_empty(rank, n_in).uniform_(-1, 1) / math.sqrt(n_in))
        self.up = nn.Parameter(like.new_zeros(n_out, rank))

    def delta(self) -> Tensor:
        """Return what the adapter adds to the layer's matrix (out, in)."""
        return self.weight * self.scale * (self.up @ self.down)

    def add_to(self, output: Tensor, x: Tensor) -> Tensor:
        """Return the layer's `output` (..., out) for x (..., in), with what the adapter adds."""
        hidden = F.linear(x, self.down if torch.is_autocast_enabled(x.device.type) else self.down.to(x.dtype))
        added = torch.addmm(
            output.flatten(0, -2),
            hidden.flatten(0, -2).to(output.dtype),
            self.up.t().to(output.dtype),
            alpha=self.weight * self.scale,
        )
        return added.view(output.shape)


class AdaptedLinear(nn.Module):
    """A frozen linear layer with adapters. One whose weight is 0 is left out."""

    def __init__(self, base: nn.Linear | FrozenLinear):
        super().__init__()
        self.in_features, self.out_features = base.in_features, base.out_features
        self.base = base
        self.adapters = nn.ModuleDict()

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer and its adapters to x: (..., in) -> (..., out)."""
        output: Tensor = self.base(x)
        for adapter in self.adapters.values():
            assert isinstance(adapter, LowRank)
            if adapter.weight:
                output = adapter.add_to(output, x)
        return output

    def merged(self) -> nn.Linear:
        """Return a plain linear layer that computes the same, up to rounding."""
        base = self.base
        weight = base.dequantize(torch.float32) if isinstance(base, FrozenLinear) else base.weight.detach().clone()
        for adapter in self.adapters.values():
            assert isinstance(adapter, LowRank)
            if adapter.weight:
                weight += adapter.delta().to(weight.dtype)
        linear = nn.Linear(self.in_features, self.out_features, bias=base.bias is not None, device="meta")
        linear.weight = nn.Parameter(weight)
        if base.bias is not None:
            linear.bias = nn.Parameter(base.bias.detach())
        return linear.train(self.training)


def add_adapters(model: nn.Module, config: TrainConfig, fresh: Collection[str] = ()) -> list[str]:
    """Freeze the model, add LoRA adapters to its matrices, and return the names of the adapted layers.

    `config.lora_layers` names the layers, such as q_proj; if it is empty, all linear layers of attention and
    feed-forward get one. `fresh` names parameters that stay trainable, such as a new head. The initial values of the
    adapters depend on `config.seed`, not on torch's random state.
    """
    found = dict(adaptable_layers(model))
    wanted = set(config.lora_layers)
    if unknown := wanted - {name.rpartition(".")[2] for name in found}:
        known = sorted({name.rpartition(".")[2] for name in found})
        raise ValueError(f"lora_layers={sorted(unknown)}: expected some of {', '.join(known)}")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in fresh)
    chosen = [name for name in found if not wanted or name.rpartition(".")[2] in wanted]
    scale = (config.lora_alpha or config.lora_rank) / config.lora_rank
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        for name in chosen:
            layer = adapt_layer(model, name, config.lora_quantize)
            like = torch.empty(0)
            layer.adapters[DEFAULT] = LowRank(layer.in_features, layer.out_features, config.lora_rank, scale, like=like)
    return chosen


def adapt_layer(model: nn.Module, name: str, bits: FrozenBits = "none") -> AdaptedLinear:
    """Replace the linear layer with this name by an `AdaptedLinear` without adapters, and return it.

    A layer that is adapted already is returned as it is.
    """
    owner, _, part = name.rpartition(".")
    linear = model.get_submodule(name)
    if isinstance(linear, AdaptedLinear):
        return linear
    assert isinstance(linear, nn.Linear)
    linear.requires_grad_(False)
    layer = AdaptedLinear(linear if bits == "none" else FrozenLinear(linear, bits)).train(linear.training)
    setattr(model.get_submodule(owner), part, layer)
    return layer


def use_adapters(model: nn.Module, weights: Mapping[str, float]) -> None:
    """Set the weight of each adapter by its name. Adapters that are not named get the weight 0.

    Raises ValueError for a name that no layer has.
    """
    known = {name for layer in adapted_layers(model).values() for name in layer.adapters}
    if unknown := sorted(weights.keys() - known):
        raise ValueError(
            f"the model has no adapter {unknown[0]!r}: expected some of {', '.join(sorted(known)) or 'none'}"
        )
    for layer in adapted_layers(model).values():
        for name, adapter in layer.adapters.items():
            assert isinstance(adapter, LowRank)
            adapter.weight = weights.get(name, 0.0)


def merge_adapters(model: nn.Module) -> None:
    """Replace each adapted layer by a plain one that computes the same, and unfreeze the model."""
    for name, layer in adapted_layers(model).items():
        owner, _, part = name.rpartition(".")
        setattr(model.get_submodule(owner), part, layer.merged())
    model.requires_grad_(True)


def fold_adapters(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a copy of a checkpoint in which each LoRA update is part of its matrix, and the update itself is zero.

    `tensors` is the checkpoint: the parameters of `model` by name. Up to rounding, both give the same model outputs.
    Checkpoints are folded before they are averaged, because an update is the product of two factors, and the product
    of averaged factors is not the average of the products.
    """
    folded = dict(tensors)
    for name, layer in adapted_layers(model).items():
        matrix = f"{name}.base.weight"
        for adapter, module in layer.adapters.items():
            assert isinstance(module, LowRank)
            up, down = (folded[f"{name}.adapters.{adapter}.{part}"] for part in ("up", "down"))
            weight = folded[matrix]
            folded[matrix] = torch.addmm(weight, up.to(weight), down.to(weight), alpha=module.scale * module.weight)
            folded[f"{name}.adapters.{adapter}.up"] = torch.zeros_like(up)
    return folded


@contextmanager
def narrowed(model: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Context manager in which the frozen parameters of an adapted model have `dtype`. Afterwards they are as before.

    Training in bf16 then needs half the memory for them, and what the adapters learn is merged into the exact weights.
    """
    frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]
    before = [parameter.data for parameter in frozen]
    for parameter in frozen:
        parameter.data = parameter.data.to(dtype)
    try:
        yield
    finally:
        for parameter, values in zip(frozen, before, strict=True):
            parameter.data = values.to(parameter.device)


def is_narrowed(model: nn.Module) -> bool:
    """Whether the model has adapters and computes in the dtype of its frozen parameters, bfloat16."""
    return bool(adapted_layers(model)) and any(p.dtype == torch.bfloat16 for p in model.parameters())


def n_trained(model: nn.Module) -> int:
    """Return how many numbers of the model are trained, that is, not frozen."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def adapted_layers(model: nn.Module) -> dict[str, AdaptedLinear]:
    """Return the layers of a model that have adapters, by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, AdaptedLinear)}


def adaptable_layers(model: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    """Yield name and layer of each linear layer in the attention and feed-forward modules, which LoRA can adapt."""
    for name, module in model.named_modules():
        if isinstance(module, MultiHeadAttention | FeedForward):
            for part, child in module.named_children():
                if isinstance(child, nn.Linear):
                    yield f"{name}.{part}", child
