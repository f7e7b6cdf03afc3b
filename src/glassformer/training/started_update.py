"""One update: the work that was started on a device, and the numbers that are read when it is done."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from glassformer.runtime.async_readback import AsyncReadback
from glassformer.training.optimizers import Muon
from glassformer.training.sharded_tensors import local_tensors


class Update(NamedTuple):
    """Statistics of one update, made or skipped: the argument of `Trainer.on_update`."""

    position: int
    """Updates tried so far, this one included."""
    update: int
    """Updates made so far, without skipped ones."""
    loss: float
    """Mean loss per target token."""
    lr: float
    gradient_norm: float
    """Norm of the gradient before clipping."""
    tokens: int
    """Target tokens of this update."""
    seconds: float
    skipped: int
    """Updates skipped so far because their gradients were not finite."""


class StartedUpdate:
    """The losses, gradient norm, tokens and learning rate of an update, and the time when it began."""

    def __init__(self, losses: "list[Tensor | float]", norm: Tensor, tokens: int, lr: float, began: float):
        self.losses, self.norm, self.tokens, self.lr, self.began = losses, norm, tokens, lr, began
        self._readback: AsyncReadback | None = None

    def apply_on_device(
        self, optimizer: torch.optim.Optimizer, clip: float, step: Callable[[], object] | None = None
    ) -> None:
        """Clip the gradient and step the optimizer, without waiting for the device; `read` will not wait for others.

        The fused kernels of Adam divide the gradient by `grad_scale`, and change nothing if `found_inf` is 1, as it
        is here if the loss or the gradient is not finite. `step` replaces the optimizer's step, and does the same.
        """
        numbers = torch.stack([*(torch.as_tensor(loss) for loss in self.losses), self.norm.float()])
        fused: Any = optimizer
        fused.found_inf = (~numbers.isfinite().all()).float()
        fused.grad_scale = (self.norm / clip).clamp_min(1.0).float() if clip else None
        for group in optimizer.param_groups:
            group["lr"] = self.lr
        (step or optimizer.step)()
        self._readback = AsyncReadback(numbers)

    def read(self) -> tuple[float, float]:
        """Wait for the update, and return its loss, summed over its batches, and its gradient norm."""
        if self._readback is None:
            return sum(float(loss) for loss in self.losses), float(self.norm)
        *losses, norm = self._readback.read()
        return sum(losses), norm  # type: ignore[arg-type, return-value]


def can_apply_on_device(optimizer: torch.optim.Optimizer, device: torch.device) -> bool:
    """Whether `StartedUpdate.apply_on_device` can be used: on a GPU with torch's fused Adam or AdamW."""
    return device.type == "cuda" and is_fused_adam(optimizer)


def is_fused_adam(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer is torch's fused Adam or AdamW, which divides gradients by its `grad_scale` in a step."""
    is_adam = isinstance(optimizer, torch.optim.Adam) and not isinstance(optimizer, Muon)
    return is_adam and bool(optimizer.defaults.get("fused"))


def divide_gradients(
    optimizer: torch.optim.Optimizer, gradients: list[Tensor], divisor: float, *, in_step: bool
) -> None:
    """Divide gradients by a number: at once, or with `in_step` in the optimizer's next step, if it is a fused Adam.

    The step reads the gradients anyway, so that dividing there saves a pass over their memory.
    """
    if in_step and is_fused_adam(optimizer):
        fused: Any = optimizer
        fused.grad_scale = torch.tensor(divisor) if divisor != 1 else None
        fused.found_inf = torch.zeros(())
    elif divisor != 1:
        torch._foreach_mul_(local_tensors(gradients), 1 / divisor)
