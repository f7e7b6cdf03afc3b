"""What every task's training has in common: the estimate, the plan, the journal, the trainer."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from glassformer.nn.compile_cache import separate_compile_cache
from glassformer.training.callbacks import Callbacks, attach
from glassformer.training.config import TrainConfig
from glassformer.training.estimate import Estimate, MemoryWatch, Truth, compare, estimate_run, in_words
from glassformer.training.gradients import TrainBatch
from glassformer.training.journal import Journal
from glassformer.training.run_folder import RunFolder
from glassformer.training.schedules import Plan
from glassformer.training.state import TrainState, newest_state
from glassformer.training.trainer import Batches, Trainer

Batch = TypeVar("Batch", bound=TrainBatch)
WARMUP_SHARE = 4
"""With --minutes, the warm-up takes at most one update in so many."""


def train_run(
    run: RunFolder,
    model: nn.Module,
    config: TrainConfig,
    *,
    batches: Batches[Batch],
    loss: Callable[[nn.Module], Callable[[Batch], Tensor]],
    evaluate: Callable[[], dict[str, float]],
    flops: Callable[[Batch], int],
    notes: Sequence[str],
    validation: str = "",
    callbacks: Callbacks | None = None,
) -> TrainState:
    """Train `model` in place, from the run's newest checkpoint, and return the state at the end.

    `loss` makes the loss of a model, compiled or not; `flops` counts the training of a batch; `notes` are printed
    first; `validation` says on what and how each validation scores.
    """
    if config.compile:
        separate_compile_cache()
    trainer = Trainer(
        model=model,
        config=config,
        batches=batches,
        loss=loss(torch.compile(model) if config.compile else model),  # type: ignore[arg-type]
        evaluate=evaluate,
        folder=run.checkpoints,
    )
    estimate = estimate_run(trainer, flops)
    state = TrainState() if run.record is None else newest_state(run.checkpoints)
    plan = make_plan(run, config, estimate, state)
    run.begin(plan, state.position)
    share = plan.updates / config.updates
    estimate = replace(estimate, flops=round(estimate.flops * share), seconds=estimate.seconds * share)
    trainer.plan, trainer.config = plan, replace(config, updates=plan.updates, warmup=plan.warmup)
    watch = MemoryWatch(trainer)
    with Journal(run.path, trainer.config) as journal:
        trainer.warn, journal.validation = journal.say, validation
        attach(trainer, callbacks or {}, on_update=journal.update, on_evaluation=journal.evaluation)
        for note in notes:
            journal.say(note)
        journal.say(f"{plan.updates:,} updates: {in_words(estimate)}")
        if plan.warmup < config.warmup:
            journal.say(
                f"the learning rate rises over {plan.warmup:,} of them, not {config.warmup:,}: there are too few"
            )
        elif plan.warmup >= plan.updates:
            journal.say(f"the learning rate never reaches its peak: it rises over {plan.warmup:,} updates (--warmup)")
        if state.update:
            journal.say(f"resuming at update {state.update:,}")
        if state.update >= plan.updates:
            journal.say("the run is complete: --continue with more --updates or --minutes extends it")
        trainer.run()
        share = trainer.state.position / trainer.config.updates
        truth = Truth(
            flops=round(share * estimate.flops), memory_bytes=watch.peak_bytes(), seconds=trainer.state.seconds
        )
        journal.say(compare(estimate, truth))
    return trainer.state


def make_plan(run: RunFolder, config: TrainConfig, estimate: Estimate, state: TrainState) -> Plan:
    """The plan of a run: as recorded, or new where the run is fresh or its training settings were changed.

    A changed plan starts at the newest checkpoint. With `minutes`, the number of updates comes from the estimate.
    """
    recorded = run.plan()
    fitting = max(1, round(config.updates * 60 * config.minutes / estimate.seconds)) if config.minutes else 0
    if recorded is None:
        updates = fitting or config.updates
        return Plan(updates=updates, warmup=_warmup(config, updates))
    changed = {
        name.removeprefix("train."): values for change in run.changes for name, values in change["settings"].items()
    }
    if not changed.keys() & {"updates", "minutes", "warmup", "lr", "schedule"}:
        return recorded
    updates, warmup = recorded.updates, recorded.warmup
    if changed.keys() & {"updates", "minutes"}:
        updates = state.update + fitting if config.minutes else config.updates
        if updates < state.update:
            raise ValueError(f"--updates {updates}: expected at least {state.update}, which the run has made already")
    if changed.keys() & {"warmup", "minutes"}:
        warmup = _warmup(config, updates)
    schedule, peak = (changed.get(name, [getattr(config, name)])[0] for name in ("schedule", "lr"))
    start_lr = recorded.lr(schedule, peak, state.update) if state.update else 0.0
    return Plan(updates=updates, warmup=warmup, start=state.update, start_lr=start_lr)


def _warmup(config: TrainConfig, updates: int) -> int:
    return min(config.warmup, updates // WARMUP_SHARE) if config.minutes else config.warmup
