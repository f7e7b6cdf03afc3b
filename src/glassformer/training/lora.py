"""Low-rank adapters (LoRA, Hu et al. 2021): train a few parameters, then merge them into a plain model.

An adapted matrix is W + scale * up @ down, with W frozen and `up` zero at first. Every forward pass computes this sum
in the precision of the parameters and uses it as the weight, so that the adapted and the merged model give the same
bits. (The usual W x + scale * up (down x) needs less memory, but rounds differently.)
"""

import math
from collections.abc import Collection, Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from glassformer.nn.feedforward import FeedForward
from glassformer.nn.multi_head_attention import MultiHeadAttention
from glassformer.training.train_config import TrainConfig


class LowRank(nn.Module):
    """The LoRA adapter of one weight matrix, as a torch parametrization: it maps W to W + scale * up @ down."""

    def __init__(self, weight: Tensor, rank: int, scale: float):
        super().__init__()
        n_out, n_in = weight.shape
        self.scale = scale
        self.down = nn.Parameter(weight.new_empty(rank, n_in).uniform_(-1, 1) / math.sqrt(n_in))
        self.up = nn.Parameter(weight.new_zeros(n_out, rank))

    def forward(self, weight: Tensor) -> Tensor:
        """Return `weight` (out, in) plus the scaled product of the adapter's factors."""
        # Without autocast: the merged model will hold this sum in full precision.
        with torch.autocast(weight.device.type, enabled=False):
            return torch.addmm(weight, self.up, self.down, alpha=self.scale)


def add_adapters(model: nn.Module, config: TrainConfig, fresh: Collection[str] = ()) -> list[str]:
    """Freeze the model, add LoRA adapters to its matrices, and return the names of the adapted layers.

    `config.lora_layers` names the layers, such as q_proj; if it is empty, all linear layers of attention and
    feed-forward get one. `fresh` names parameters that stay trainable, such as a new head. The initial values of the
    adapters depend on `config.seed`, not on torch's random state.
    """
    found = dict(_matrices(model))
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
            adapter = LowRank(found[name].weight.detach(), config.lora_rank, scale)
            parametrize.register_parametrization(found[name], "weight", adapter)
    return chosen


def merge_adapters(model: nn.Module) -> None:
    """Replace each adapted matrix by its sum with the adapter, remove the adapters, and unfreeze the model."""
    for module in [*model.modules()]:
        if parametrize.is_parametrized(module, "weight"):
            parametrize.remove_parametrizations(module, "weight", leave_parametrized=True)
    model.requires_grad_(True)


def fold_adapters(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a copy of a checkpoint in which each LoRA update is part of its matrix, and the update itself is zero.

    `tensors` is the checkpoint: the parameters of `model` by name. Up to rounding, both give the same model outputs.
    Checkpoints are folded before they are averaged, because an update is the product of two factors, and the product
    of averaged factors is not the average of the products.
    """
    folded = dict(tensors)
    for name, module in model.named_modules():
        if isinstance(module, LowRank):
            matrix = f"{name.rpartition('.')[0]}.original"
            up, down = folded[f"{name}.up"], folded[f"{name}.down"]
            folded[matrix] = torch.addmm(folded[matrix], up, down, alpha=module.scale)
            folded[f"{name}.up"] = torch.zeros_like(up)
    return folded


def n_trained(model: nn.Module) -> int:
    """Return how many numbers of the model are trained, that is, not frozen."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def _matrices(model: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    """Yield name and layer of each linear layer in the attention and feed-forward modules, which LoRA can adapt."""
    for name, module in model.named_modules():
        if isinstance(module, MultiHeadAttention | FeedForward):
            for part, child in module.named_children():
                if isinstance(child, nn.Linear):
                    yield f"{name}.{part}", child
