"""Decide whether the layers of a model are compiled for training (`--compile`): by a trial, if `auto` says so."""

import time
from typing import Any

import torch

from glassformer.nn.expert_feedforward import ExpertFeedForward
from glassformer.runtime.compile_cache import check_cpp_compiler
from glassformer.training.state import newest_state, saved_positions
from glassformer.training.trainer import Trainer

PAYS_FROM = 120.0
"""Compiling takes up to a minute, so `auto` tries it for runs that take at least this many seconds without it."""
TRIED, ROUNDS = 2, 3
"""Number of batches of the trial, and how often each is timed. The fastest round counts."""


def choose_compilation(trainer: Trainer[Any]) -> list[str]:
    """Compile the layers of the trainer's model, or not, as its config asks for. Return lines that say why.

    `auto` compares both by a few batches on a GPU, and compiles nothing in a run of several processes. A run that has a
    checkpoint keeps what it began with, so that it resumes with the same bits. The model, its gradients and the random
    state do not change.
    """
    config, setup = trainer.config, trainer.setup
    if config.compile != "off" and any(isinstance(module, ExpertFeedForward) for module in trainer.model.modules()):
        is_asked = config.compile == "on" or trainer.device.type == "cuda"
        return ["the layers are not compiled: compiled experts would compute every token"] if is_asked else []
    if config.compile == "on" and trainer.device.type == "cpu":
        check_cpp_compiler()
    if trainer.parallel.is_active:
        _set_compiled(trainer, config.compile == "on")
        return []
    if config.compile == "on" and setup.copy is None:
        return ["the layers are not compiled (--compile on): adapters and adversarial training change their weights"]
    if config.compile == "on":
        _set_compiled(trainer, True)
    if config.compile != "auto" or setup.copy is None or trainer.device.type != "cuda":
        return []
    if saved_positions(trainer.folder):
        _set_compiled(trainer, newest_state(trainer.folder).is_compiled)
        return []
    plain = _seconds_per_batch(trainer)
    planned = config.minutes * 60 if config.minutes else plain * config.updates * config.accumulate
    if planned < PAYS_FROM:
        return [f"the layers are not compiled, because the run takes less than {PAYS_FROM:.0f} s (--compile auto)"]
    began = time.perf_counter()
    _set_compiled(trainer, True)
    compiled = _seconds_per_batch(trainer)
    taken = time.perf_counter() - began
    numbers = f"{1e3 * compiled:.1f} ms a batch instead of {1e3 * plain:.1f}"
    if compiled < plain:
        return [f"the layers are compiled, which took {taken:.0f} s: {numbers} (--compile auto)"]
    _set_compiled(trainer, False)
    return [f"the layers are not compiled, because a trial took {numbers} (--compile auto)"]


def _set_compiled(trainer: Trainer[Any], on: bool) -> None:
    trainer.setup.set_compiled(on)
    trainer.gradients = trainer.setup.gradients()


def _seconds_per_batch(trainer: Trainer[Any]) -> float:
    """Return the fastest time of a forward and backward pass, as a mean of the first batches."""
    before = [(parameter, parameter.grad) for parameter in trainer.model.parameters()]
    gradients = trainer.setup.gradients()
    batches = [trainer.batches[number] for number in range(TRIED)]
    fastest = [float("inf")] * TRIED
    with torch.random.fork_rng([trainer.device] if trainer.device.type == "cuda" else []):
        trainer.model.train()
        for _ in range(1 + ROUNDS):  # the first round compiles and records
            for index, batch in enumerate(batches):
                _wait_for(trainer.device)
                began = time.perf_counter()
                gradients.clear()
                gradients.add(batch, divisor=1.0, scale=1.0)
                _wait_for(trainer.device)
                fastest[index] = min(fastest[index], time.perf_counter() - began)
    for parameter, gradient in before:
        parameter.grad = gradient
    return sum(fastest) / TRIED


def _wait_for(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
