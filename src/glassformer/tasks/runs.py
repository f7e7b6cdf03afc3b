"""What every task's training has in common: a folder beside the model, an estimate, a journal, the trainer."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from glassformer.checkpoint.safe_files import write_text
from glassformer.training.config import TrainConfig
from glassformer.training.estimate import Estimate, MemoryWatch, Truth, compare, estimate_run, in_words
from glassformer.training.gradients import TrainBatch
from glassformer.training.journal import Journal
from glassformer.training.state import TrainState
from glassformer.training.trainer import Batches, Trainer

Batch = TypeVar("Batch", bound=TrainBatch)


def run_folder(out: Path, config: Any) -> Path:
    """The folder of a run, beside the model folder `out`; an error where it holds a run with other settings."""
    run = out.with_name(f"{out.name}.run")
    path = run / "config.json"
    text = json.dumps(asdict(config), indent=2, default=str)
    if path.is_file() and path.read_text(encoding="utf-8") != text:
        raise ValueError(f"{run} holds a run with other settings: expected the same, another out, or remove it")
    run.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
    return run


def train_run(
    run: Path,
    model: nn.Module,
    config: TrainConfig,
    *,
    batches: Batches[Batch],
    loss: Callable[[nn.Module], Callable[[Batch], Tensor]],
    evaluate: Callable[[], dict[str, float]],
    flops: Callable[[Batch], int],
    notes: Sequence[str],
) -> TrainState:
    """Train `model` in place, from where the run stopped; where it is when it ends.

    `loss` makes the loss of a model, compiled or not; `flops` counts the training of a batch; `notes` are told first.
    """
    trainer = Trainer(
        model=model,
        config=config,
        batches=batches,
        loss=loss(torch.compile(model) if config.compile else model),  # type: ignore[arg-type]
        evaluate=evaluate,
        folder=run / "checkpoints",
    )
    estimate = estimate_run(trainer, flops)
    if config.minutes:
        trainer.config, estimate = _fit_into(config, estimate, run / "plan.json")
    watch = MemoryWatch(trainer)
    with Journal(run, trainer.config) as journal:
        trainer.on_update, trainer.on_evaluation, trainer.warn = journal.update, journal.evaluation, journal.say
        for note in notes:
            journal.say(note)
        journal.say(f"{trainer.config.updates:,} updates: {in_words(estimate)}")
        trainer.run()
        share = trainer.state.position / trainer.config.updates
        truth = Truth(
            flops=round(share * estimate.flops), memory_bytes=watch.peak_bytes(), seconds=trainer.state.seconds
        )
        journal.say(compare(estimate, truth))
    return trainer.state


def _fit_into(train: TrainConfig, estimate: Estimate, path: Path) -> tuple[TrainConfig, Estimate]:
    """As many updates as fit into the minutes asked for. Chosen once: a run that goes on keeps to its plan."""
    if path.is_file():
        updates = int(json.loads(path.read_text(encoding="utf-8"))["updates"])
    else:
        updates = max(1, round(train.updates * 60 * train.minutes / estimate.seconds))
        write_text(path, json.dumps({"updates": updates}))
    share = updates / train.updates
    whole = replace(estimate, flops=round(estimate.flops * share), seconds=estimate.seconds * share)
    return replace(train, updates=updates), whole
