"""A minimal training loop for small models: Adam, warm-up, cosine decay and gradient clipping."""

import time
from collections.abc import Callable, Iterable
from itertools import islice
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

Batch = TypeVar("Batch")


class FitReport(NamedTuple):
    """The state of `fit` after one step."""

    step: int
    """Number of steps made so far."""
    loss: float
    """Loss of this step's batch."""
    seconds: float
    """Time since `fit` was called."""


def fit(
    model: nn.Module,
    batches: Iterable[Batch],
    loss: Callable[[Batch], Tensor],
    *,
    steps: int,
    lr: float = 1e-3,
    warmup: int = 50,
    clip: float = 1.0,
    on_step: Callable[[FitReport], bool | None] | None = None,
) -> FitReport:
    """Train `model` with Adam to minimize `loss(batch)`, for at most `steps` batches, and return the last report.

    The learning rate rises to `lr` over `warmup` steps, then falls to zero along a half cosine. The norm of the
    gradient is clipped to `clip`. `on_step` is called after every step; training ends early if it returns True.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, betas=(0.9, 0.98), eps=1e-9)
    half_cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(steps - warmup, 1))
    rise = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / max(warmup, 1), total_iters=warmup)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [rise, half_cosine], milestones=[warmup])
    began = time.perf_counter()
    report = FitReport(0, float("nan"), 0.0)
    model.train()
    for step, batch in enumerate(islice(batches, steps), start=1):
        value = loss(batch)
        if not value.isfinite():
            raise FloatingPointError(
                f"the loss is {value.item()} at step {step}: a lower lr or a longer warmup may help"
            )
        optimizer.zero_grad()
        value.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        schedule.step()
        report = FitReport(step, value.item(), time.perf_counter() - began)
        if on_step is not None and on_step(report):
            break
    model.eval()
    return report
