"""Decide whether C++ kernels compute the layers of a model that is trained on a CPU, and keep freed memory."""

import time
from typing import Any

from glassformer.base.freed_memory import keep_freed_memory
from glassformer.kernels.cpp_library import KernelBuildError, UnsupportedCPUError
from glassformer.training.state import newest_state, saved_positions
from glassformer.training.trainer import Trainer

PAYS_FROM = 30.0
"""Compiling the kernels takes three to ten seconds, once per machine. Runs of at least this many seconds use them."""
ASSUMED_RATE = 5e10
"""Floating-point operations per second by which the time of a run is guessed."""


def choose_cpu_kernels(trainer: Trainer[Any], flops: float) -> list[str]:
    """Let C++ kernels compute layers of the trainer's model, if that pays. Return lines that say what is used.

    `flops` are the floating-point operations of one update. `--compile off` keeps torch's own kernels, and returns
    freed memory to the system. A run with a checkpoint keeps what it began with, so that it resumes with the same bits.
    """
    config, is_resumed = trainer.config, bool(saved_positions(trainer.folder))
    if trainer.device.type != "cpu" or config.compile == "off":
        return []
    keep_freed_memory()
    if not trainer.setup.can_use_cpu_kernels:
        return []
    if is_resumed:
        before = newest_state(trainer.folder)
        is_used = before.has_cpu_kernels
    else:
        seconds = 60 * config.minutes if config.minutes else config.updates * flops / ASSUMED_RATE
        is_used = seconds >= PAYS_FROM
    if not is_used:
        return []
    began = time.perf_counter()
    try:
        computed = trainer.setup.use_cpu_kernels()
    except KernelBuildError as error:
        if isinstance(error, UnsupportedCPUError) and not is_resumed:
            return []
        results = ", and results differ from those of an uninterrupted run" if is_resumed else ""
        return [f"torch computes all layers, which is slower{results}: {error}"]
    trainer.gradients = trainer.setup.gradients()
    taken = time.perf_counter() - began
    compiled = f", which were compiled in {taken:.0f} s," if taken > 1 else ""
    lines = [f"C++ kernels{compiled} compute {computed}"] if computed else []
    layers = trainer.setup.cpu_layers
    if is_resumed and layers is not None and layers.in_bf16 != before.has_bf16_kernels:
        now = "C++ kernels now compute" if layers.in_bf16 else "torch now computes"
        lines.append(f"{now} the linear layers: results differ from those of an uninterrupted run")
    return lines
