"""Optimizers: torch's Adam and AdamW, and Muon for the weight matrices of the layers."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from glassformer.nn import Stack
from glassformer.training.bf16_linear import are_matmuls_bf16
from glassformer.training.train_config import TrainConfig

# Coefficients of three odd quintic polynomials, one per iteration of `orthogonalize`. Each is the one closest to 1 over
# the range of the singular values at that iteration (Polar Express, Amsel et al. 2025). After three iterations,
# singular values that were between 0.01 and 1 are between 0.73 and 1.27.
MARGIN = 1.01
QUINTICS = ((8.0934, -23.6204, 17.4462), (3.6366, -2.7219, 0.5365), (2.6613, -1.9772, 0.4526))


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """Return the optimizer that `config.optimizer` names, for all parameters that are not frozen.

    Weight decay applies to matrices only. Adam and AdamW use torch's fused kernels.
    """
    learned = [p for p in model.parameters() if p.requires_grad]
    by_muon = list(_layer_matrices(model)) if config.optimizer == "muon" else []
    known = {id(p) for p in by_muon}
    rest = [p for p in learned if id(p) not in known]
    # The fused kernels take parameters of one device mesh at a time, where they are sharded.
    meshes = list(dict.fromkeys(getattr(p, "device_mesh", None) for p in rest))
    groups = [
        {"params": [p for p in rest if (p.dim() > 1) == is_matrix and getattr(p, "device_mesh", None) == mesh], **decay}
        for mesh in meshes
        for is_matrix, decay in ((True, {"weight_decay": config.weight_decay}), (False, {"weight_decay": 0.0}))
    ]
    common: dict[str, Any] = {"lr": config.lr, "betas": (config.beta1, config.beta2), "eps": config.eps, "fused": True}
    groups = [group for group in groups if group["params"]]
    if by_muon:
        return Muon(by_muon, groups, momentum=config.momentum, weight_decay=config.weight_decay, **common)
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    return kind(groups, **common)


def _layer_matrices(model: nn.Module) -> Iterator[nn.Parameter]:
    """Yield the matrices that Muon trains: those of linear layers in the encoder and decoder stacks, unless frozen."""
    seen: set[int] = set()
    for stack in (module for module in model.modules() if isinstance(module, Stack)):
        for layer in (module for module in stack.modules() if isinstance(module, nn.Linear)):
            for parameter in layer.parameters(recurse=False):
                if parameter.dim() == 2 and parameter.requires_grad and id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield parameter


class Muon(torch.optim.AdamW):
    """Muon (Jordan et al. 2024) for `matrices`, AdamW for the `rest` of the parameters.

    The gradient of a matrix is dominated by a few directions. Muon orthogonalizes it, so that all directions of the
    step have about the same size. Steps are scaled to the typical size of Adam's steps (Liu et al. 2025), so that both
    kinds of parameters can use one learning rate. `adam` holds the keyword arguments of AdamW.
    """

    def __init__(self, matrices: list[nn.Parameter], rest: Iterable[dict[str, Any]], *, momentum: float, **adam: Any):
        super().__init__(list(rest), **adam)
        self.momentum = momentum
        self.weight_decay = adam["weight_decay"]
        self.matrices = matrices

    @override
    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        result = super().step(closure)
        lr = self.param_groups[0]["lr"]
        by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
        for matrix in self.matrices:
            if matrix.grad is not None:
                by_shape[matrix.shape].append(matrix)
        for (n_out, n_in), matrices in by_shape.items():  # one batched product per shape
            steps = orthogonalize(torch.stack(self._directions(matrices)))
            size = 0.2 * max(n_out, n_in) ** 0.5
            torch._foreach_mul_(matrices, 1 - lr * self.weight_decay)
            torch._foreach_add_(matrices, steps.unbind(), alpha=-lr * size)
        return result

    def _directions(self, matrices: list[Tensor]) -> list[Tensor]:
        """Update the momentum of matrices with their gradients, and return the gradients with Nesterov momentum."""
        gradients = [matrix.grad for matrix in matrices if matrix.grad is not None]
        states = [self.state[matrix] for matrix in matrices]
        for matrix, state in zip(matrices, states, strict=True):
            if "momentum" not in state:
                state["momentum"] = torch.zeros_like(matrix)
        momenta = [state["momentum"] for state in states]
        torch._foreach_lerp_(momenta, gradients, 1 - self.momentum)
        return list(torch._foreach_lerp(gradients, momenta, self.momentum))


def orthogonalize(matrices: Tensor) -> Tensor:
    """Return matrices (N, m, n) with the same singular vectors as the given ones, and singular values near 1.

    Newton-Schulz iterations need matrix products only. Singular values far below 1 % of the largest stay small.
    """
    is_tall = matrices.size(-2) > matrices.size(-1)
    # bfloat16 is precise enough, because the singular values need only be near 1.
    in_bf16 = matrices.is_cuda or (matrices.dtype == torch.float32 and are_matmuls_bf16())
    x = matrices.bfloat16() if in_bf16 else matrices
    short, long = sorted(x.shape[-2:])
    if x.dtype != torch.bfloat16 and long > 1.5 * short:
        return _orthogonalize_by_grams(x)
    x = x.mT.contiguous() if is_tall else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp_min(1e-30)
    gram = x @ x.mT.contiguous()  # contiguous, because products with a transposed view take twice as long on some CPUs
    # No singular value is above 1 now. Dividing by a tighter bound moves them closer to 1, which saves an iteration.
    # The margin covers rounding errors: the quintics grow steeply above 1.
    bound = gram.norm(dim=(-2, -1), keepdim=True).clamp_min(1e-30) * MARGIN**2
    x, gram = x / bound.sqrt(), gram / bound
    for n_left, (a, b, c) in zip(range(len(QUINTICS))[::-1], QUINTICS, strict=True):
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
        gram = x @ x.mT.contiguous() if n_left else gram
    return (x.mT if is_tall else x).to(matrices.dtype)


def _orthogonalize_by_grams(matrices: Tensor) -> Tensor:
    """Return the same as `orthogonalize`, for matrices in float32 or float64 that are far from square.

    A step of the iteration is p(G) X with a polynomial p of the Gram matrix G = X Xᵀ, and the next Gram matrix is
    p(G) G p(G). So all steps are products of small square matrices, and the last one multiplies X by all polynomials.
    In bfloat16 the rounding errors of G would grow from step to step.
    """
    is_tall = matrices.size(-2) > matrices.size(-1)
    x = matrices / matrices.norm(dim=(-2, -1), keepdim=True).clamp_min(1e-30)
    gram = x.mT @ x if is_tall else x @ x.mT
    bound = gram.norm(dim=(-2, -1), keepdim=True).clamp_min(1e-30) * MARGIN**2
    gram, whole = gram / bound, None
    for n_left, (a, b, c) in zip(range(len(QUINTICS))[::-1], QUINTICS, strict=True):
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        polynomial.diagonal(dim1=-2, dim2=-1).add_(a)
        gram = polynomial @ gram @ polynomial if n_left else gram
        whole = polynomial if whole is None else polynomial @ whole
    whole = whole / bound.sqrt()
    return x @ whole if is_tall else whole @ x
