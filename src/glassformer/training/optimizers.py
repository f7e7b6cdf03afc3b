"""How gradients move parameters: Adam and AdamW, torch's own, and Muon for the matrices of the layers."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.nn import Stack
from glassformer.training.train_config import TrainConfig

# Of all odd quintics the nearest to 1, between a hundredth and 1 in the first round, and over what is left by it in the
# next (Amsel et al. 2025): after three a singular value above a hundredth is between 0.73 and 1.27.
MARGIN = 1.01
QUINTICS = ((8.0934, -23.6204, 17.4462), (3.6366, -2.7219, 0.5365), (2.6613, -1.9772, 0.4526))


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """The optimizer of what is not frozen, Adam's share in one fused kernel; weight decay is for matrices alone."""
    learned = [p for p in model.parameters() if p.requires_grad]
    by_muon = list(_layer_matrices(model)) if config.optimizer == "muon" else []
    known = {id(p) for p in by_muon}
    rest = [p for p in learned if id(p) not in known]
    groups = [
        {"params": [p for p in rest if p.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in rest if p.dim() <= 1], "weight_decay": 0.0},
    ]
    common: dict[str, Any] = {"lr": config.lr, "betas": (config.beta1, config.beta2), "eps": config.eps, "fused": True}
    groups = [group for group in groups if group["params"]]
    if by_muon:
        return Muon(by_muon, groups, momentum=config.momentum, weight_decay=config.weight_decay, **common)
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    return kind(groups, **common)


def _layer_matrices(model: nn.Module) -> Iterator[nn.Parameter]:
    """The weights of all linear layers inside the stacks: no embedding, no head, nothing that is frozen."""
    seen: set[int] = set()
    for stack in (module for module in model.modules() if isinstance(module, Stack)):
        for layer in (module for module in stack.modules() if isinstance(module, nn.Linear)):
            for parameter in layer.parameters(recurse=False):
                if parameter.dim() == 2 and parameter.requires_grad and id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield parameter


class Muon(torch.optim.AdamW):
    """Muon (Jordan et al. 2024) for some matrices, AdamW for the rest.

    A matrix's gradient is mostly a few strong directions; Muon makes all directions of the step equally strong, so
    that the rare ones are learned too. Its steps are scaled to be as large as Adam's usually are (Liu et al. 2025), so
    that one learning rate does for both.
    """

    def __init__(self, matrices: list[nn.Parameter], rest: Iterable[dict[str, Any]], *, momentum: float, **adam: Any):
        super().__init__(list(rest), **adam)
        self.momentum = momentum
        self.weight_decay = adam["weight_decay"]
        self.matrices = matrices

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Move everything that has a gradient."""
        result = super().step(closure)
        lr = self.param_groups[0]["lr"]
        alike: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
        for matrix in self.matrices:
            if matrix.grad is not None:
                alike[matrix.shape].append(matrix)
        for (n_out, n_in), matrices in alike.items():  # one product for all of a shape
            steps = orthogonalise(torch.stack([self._direction(matrix) for matrix in matrices]))
            size = 0.2 * max(n_out, n_in) ** 0.5
            for matrix, step in zip(matrices, steps, strict=True):
                matrix.mul_(1 - lr * self.weight_decay).add_(step, alpha=-lr * size)
        return result

    def _direction(self, matrix: nn.Parameter) -> Tensor:
        """The gradient, steadied by those before it (Nesterov's way)."""
        assert matrix.grad is not None
        state = self.state[matrix]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(matrix)
        kept: Tensor = state["momentum"].lerp_(matrix.grad, 1 - self.momentum)
        return matrix.grad.lerp(kept, self.momentum)


def orthogonalise(matrices: Tensor) -> Tensor:
    """(N, m, n), each with all its singular values brought near 1, but for the very smallest: by products alone
    (Newton-Schulz)."""
    is_tall = matrices.size(-2) > matrices.size(-1)
    # Where products of half the width are fast, they are exact enough: the values need only be near 1.
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    x = x.mT.contiguous() if is_tall else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp_min(1e-30)
    gram = x @ x.mT.contiguous()  # of a transposed view, products are half as fast on some CPUs
    # No singular value is above 1 now; this keeps it so and brings them nearer to it, which saves a round. The margin
    # is for rounding: above 1 the quintics rise steeply.
    bound = gram.norm(dim=(-2, -1), keepdim=True).clamp_min(1e-30) * MARGIN**2
    x, gram = x / bound.sqrt(), gram / bound
    for n_left, (a, b, c) in zip(range(len(QUINTICS))[::-1], QUINTICS, strict=True):
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
        gram = x @ x.mT.contiguous() if n_left else gram
    return (x.mT if is_tall else x).to(matrices.dtype)
