"""Step Adam with the gradients of a `ComputeCopy`: the new parameters go to the model and to the copy at once.

Without it, the copy's gradients are converted to float32, torch's optimizer reads them, and the copy reads the new
parameters. The optimizer keeps its state, so checkpoints are the same with and without it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from glassformer.kernels.adam_kernel import AdamKernel, AdamSettings, AdamTensors
from glassformer.training.compute_copy import ComputeCopy


class CopyUpdate:
    """Makes the steps of `optimizer`, torch's Adam or AdamW for the parameters of a model that `copy` is a copy of.

    `reuses_gradients` says that all updates get the same list of gradients, with other numbers, as of CUDA graphs.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, copy: ComputeCopy, *, reuses_gradients: bool = False):
        self.optimizer = optimizer
        self.copy = copy
        self._owns = [own for own, _ in copy.learned_pairs()]
        self._kernel: AdamKernel | None = None
        self._known: list[int] = []
        """The addresses of what `_kernel` changes."""
        self._steps: list[Tensor] = []
        self._split: tuple[object, list[Tensor | None]] = None, []
        """The gradients of the last call, and their parts for each parameter."""
        self._reuses_gradients = reuses_gradients
        group = optimizer.param_groups[0]
        device = group["params"][0].device
        self._betas = torch.tensor(group["betas"], dtype=torch.float64, device=device)
        self._one = torch.ones((), device=device)

    @torch.no_grad()
    def norm(self, gradients: "Sequence[Tensor | None]") -> Tensor:
        """Return the norm of these gradients, those of `copy.learned`, on the device."""
        return self._prepared().norm(self._parts(gradients))

    @torch.no_grad()
    def step(self, gradients: "Sequence[Tensor | None]", *, found_inf: Tensor, grad_scale: Tensor | None) -> None:
        """Step with these gradients, those of `copy.learned`, divided by `grad_scale`, without waiting for the device.

        Nothing changes if `found_inf` is 1.
        """
        kernel = self._prepared()
        group = self.optimizer.param_groups[0]
        counted = 1 - found_inf
        torch._foreach_add_(self._steps, [counted] * len(self._steps))  # adding one tensor to all waits for its value
        corrections = (1 - self._betas ** self._steps[0]).float()
        beta1, beta2 = group["betas"]
        settings = AdamSettings(group["lr"], beta1, beta2, group["eps"], bool(group["decoupled_weight_decay"]))
        scale = self._one if grad_scale is None else grad_scale
        kernel.step(self._parts(gradients), settings, corrections, scale=scale, found_inf=found_inf)
        if not self._reuses_gradients:
            self._split = None, []  # so that their memory is free in the next backward pass

    def _parts(self, gradients: "Sequence[Tensor | None]") -> "list[Tensor | None]":
        if self._split[0] is not gradients:
            self._split = gradients, self.copy.split(gradients)
        return self._split[1]

    def _prepared(self) -> AdamKernel:
        """Return the kernel for the optimizer's state: a new one if tensors were replaced, as a checkpoint does."""
        state = self.optimizer.state
        for own in self._owns:
            if not state[own]:
                zeros = torch.zeros_like(own, memory_format=torch.contiguous_format)
                state[own] = {"step": torch.zeros((), device=own.device), "exp_avg": zeros, "exp_avg_sq": zeros.clone()}
        moments = [state[own][name] for own in self._owns for name in ("exp_avg", "exp_avg_sq")]
        addresses = [tensor.data_ptr() for tensor in (*self._owns, *moments, *self.copy.learned)]
        if self._kernel is None or self._known != addresses:
            tensors = [
                AdamTensors(own, state[own]["exp_avg"], state[own]["exp_avg_sq"], copied)
                for own, copied in self.copy.learned_pairs()
            ]
            decays = {id(p): group["weight_decay"] for group in self.optimizer.param_groups for p in group["params"]}
            self._kernel = AdamKernel(tensors, [decays[id(own)] for own in self._owns])
            self._known = addresses
        self._steps = [state[own]["step"] for own in self._owns]
        return self._kernel
