"""The prediction of `glassformer plan` for a training run, which `train` on a GPU prints beside its measured estimate.

`plan` predicts from a config, without a GPU; `train` measures a few steps. `predict_update` makes both predictions, so
a run on a GPU shows how far the formulas are off.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from glassformer.models import Model
from glassformer.models.cluster_plan import MACHINES, Machine, predict_update
from glassformer.models.training_costs import StepShape, step_flops
from glassformer.training.estimate import LOOKED_AT, Estimate, rough_duration, with_unit
from glassformer.training.gradients import Batch
from glassformer.training.trainer import Trainer


class PredictedCosts(NamedTuple):
    """The predicted cost of a run on each GPU."""

    memory_bytes: int
    """Peak memory of an update that torch allocates, without the CUDA context."""
    seconds: float | None
    """Time of `config.updates` updates; None if `plan` does not know this kind of GPU."""

    def in_words(self, estimate: Estimate, share: float = 1.0) -> str:
        """Return the prediction and its difference from the measured estimate as one line of text.

        `share` is the part of `config.updates` that `estimate` is about.
        """
        parts = [f"{with_unit(self.memory_bytes, 'B')} ({self.memory_bytes / estimate.memory_bytes - 1:+.0%})"]
        if self.seconds is not None:
            seconds = self.seconds * share
            parts.append(f"{rough_duration(seconds)} ({seconds / estimate.seconds - 1:+.0%})")
        return f"the formulas of glassformer plan predict {' and '.join(parts)}"


def predict_run(
    trainer: Trainer[Batch], flops_of: Callable[[Batch], int], gpu: str | None = None
) -> PredictedCosts | None:
    """Return what `plan` predicts for a run; None on other devices, and where its formulas do not apply.

    The formulas assume bf16, Adam or AdamW, one pass over each batch, and that all parameters are learned.

    Args:
        trainer: The trainer of the run.
        flops_of: Returns the floating-point operations of a forward and backward pass over a batch.
        gpu: Name of the GPU; None asks the trainer's device.
    """
    config, layout, model = trainer.config, trainer.parallel.layout, trainer.model
    if gpu is None and trainer.device.type == "cuda":
        gpu = torch.cuda.get_device_name(trainer.device)
    is_usual = config.optimizer in ("adam", "adamw") and config.passes == 1 and trainer.precision == "bf16"
    is_whole = isinstance(model, Model) and all(one.requires_grad for one in model.parameters())
    if gpu is None or not isinstance(model, Model) or not is_usual or not is_whole:
        return None
    machine = find_machine(gpu)
    takes_whole = config.accumulate % layout.n_parts == 0  # else some rows of each batch
    plans = []
    for number in range(min(LOOKED_AT, config.updates * config.accumulate)):
        batch = trainer.batches[number]
        shape = step_shape(model, batch, flops_of(batch))
        plans.append(
            predict_update(
                model.config,
                machine or MACHINES["h200"],
                shape if takes_whole else shape._replace(rows=shape.rows / layout.n_parts),
                data=layout.data,
                shard=layout.shard,
                tensor=layout.tensor,
                accumulate=config.accumulate // layout.n_parts if takes_whole else config.accumulate,
                checkpointing=config.gradient_checkpointing,
            )
        )
    mean = sum(one.seconds for one in plans) / len(plans)
    return PredictedCosts(max(one.memory.total for one in plans), None if machine is None else mean * config.updates)


def step_shape(model: Model, batch: Any, flops: float) -> StepShape:
    """Return the lengths of a batch, padding included, and its number of rows.

    Rows that pass the model twice (R-Drop) count twice: `flops` decides, the operations of a pass over the batch.
    """
    if hasattr(batch, "target_in"):
        lengths = StepShape(1, batch.source.shape[1], batch.target_in.shape[1])
    elif model.kind == "decoder":
        lengths = StepShape(1, 0, batch.tokens.shape[1])
    else:
        lengths = StepShape(1, batch.tokens.shape[1], 0)
    return lengths._replace(rows=flops / step_flops(model.config, lengths))


def find_machine(name: str) -> Machine | None:
    """Return the machine whose GPU has this name, such as "NVIDIA H200"; None if `plan` does not know it."""
    words = name.upper().replace("-", " ").split()
    return next((machine for machine in MACHINES.values() if machine.name in words), None)
