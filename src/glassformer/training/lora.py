"""Low-rank adapters (LoRA, Hu et al. 2021): a large model learns by few numbers, and is a plain model afterwards.

An adapted matrix is W + scale · up @ down, with W frozen and `up` zero at first. The sum is made in each forward, in
the parameters' own precision, and only then met by what the layer reads: so an adapted model and the merged one give
the same bits. (The usual W x + scale · up (down x) rounds otherwise, and saves the memory of the sum.)
"""

import math
from collections.abc import Collection, Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from glassformer.nn.attention import MultiHeadAttention
from glassformer.nn.feedforward import FeedForward
from glassformer.training.train_config import TrainConfig


class LowRank(nn.Module):
    """What is added to one matrix."""

    def __init__(self, weight: Tensor, rank: int, scale: float):
        super().__init__()
        n_out, n_in = weight.shape
        self.scale = scale
        self.down = nn.Parameter(weight.new_empty(rank, n_in).uniform_(-1, 1) / math.sqrt(n_in))
        self.up = nn.Parameter(weight.new_zeros(n_out, rank))

    def forward(self, weight: Tensor) -> Tensor:
        """(out, in) -> (out, in)."""
        # Not in half precision, whatever the rest is computed in: what is merged in the end is this sum.
        with torch.autocast(weight.device.type, enabled=False):
            return torch.addmm(weight, self.up, self.down, alpha=self.scale)


def add_adapters(model: nn.Module, config: TrainConfig, fresh: Collection[str] = ()) -> list[str]:
    """Freeze all parameters but those called `fresh`, and adapt the matrices that `config` asks for; their names.

    Norms, biases and embeddings are frozen too. The same seed gives the same adapters.
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
    """Make it a plain model again, whose matrices are what the adapters made of them; nothing is frozen any more."""
    for module in [*model.modules()]:
        if parametrize.is_parametrized(module, "weight"):
            parametrize.remove_parametrizations(module, "weight", leave_parametrized=True)
    model.requires_grad_(True)


def fold_adapters(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The parameters of an adapted model with each adapter's product added to its matrix, and a zero adapter.

    The mean of several models is the mean of their matrices. The mean of their factors is another matrix.
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
    """Numbers that learn."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def _matrices(model: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    """Those of attention and feed-forward, in whichever layers."""
    for name, module in model.named_modules():
        if isinstance(module, MultiHeadAttention | FeedForward):
            for part, child in module.named_children():
                if isinstance(child, nn.Linear):
                    yield f"{name}.{part}", child
