"""What a training run will cost, told before it begins, and held against the truth after it.

The operations follow from the shapes of the batches; the time and the memory of a step are measured in a pilot of
three batches that changes nothing. The memory covers validations too, by a sample. The time does not: it is of the
training alone, and so is `TrainState.seconds`, its truth.
"""

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from glassformer.progress import Step
from glassformer.training.gradients import Batch, GraphedGradients
from glassformer.training.optimizers import make_optimizer
from glassformer.training.precision import autocast
from glassformer.training.resident_memory import forget_peak, give_back_freed, peak_resident, resident
from glassformer.training.trainer import Trainer

LOOKED_AT = 64
"""Batches whose shapes speak for all."""
TIMED = 2
"""Batches that are timed, after one that warms up."""
FLOAT32 = 4
"""Bytes of a parameter, and of its gradient."""

KEPT_BYTES = 20 * 10**6
"""What validations on a CPU take beyond the sample that is measured, whatever the model: their larger batches, and
memory that the allocator cannot use again as shapes change."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a whole run will cost."""

    parameters: int
    flops: int
    memory_bytes: int
    """The most at one time, in updates and validations: weights, gradients, the optimizer's moments, activations,
    working space. On a CPU it is the growth of the resident memory of this process, and the weights."""
    seconds: float
    """Of training alone."""
    device: str
    base_bytes: int | None = None
    """On a CPU: the resident memory of this process without the weights, before the run. None if unknown."""

    @property
    def peak_bytes(self) -> int:
        """The most that the device, or on a CPU this process, will hold."""
        return self.memory_bytes + (self.base_bytes or 0)


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What a run did cost."""

    flops: int
    """Of the updates that were made: fewer than planned where patience ended the run."""
    peak_bytes: int | None
    """The most that the device, or on a CPU this process, held; None if unknown."""
    seconds: float


def estimate_run(
    trainer: Trainer[Batch], flops_of: Callable[[Batch], int], validate: Callable[[], object] | None = None
) -> Estimate:
    """What `trainer.run()` will cost from its first update to its last; `flops_of` a batch counts its training.

    On a CPU the memory of validations is measured too: `validate` scores a sample. Parameters, gradients, the optimizer
    and the random state are left as they were.
    """
    config = trainer.config
    n_batches = config.updates * config.accumulate
    flops = [flops_of(trainer.batches[step]) for step in range(min(LOOKED_AT, n_batches))]
    mean = sum(flops) / len(flops)
    largest = max(range(len(flops)), key=flops.__getitem__)
    typical = sorted(range(len(flops)), key=lambda step: abs(flops[step] - mean))[:TIMED]
    if trainer.device.type != "cpu":
        typical *= 2  # the first time of a shape chooses or records kernels
    growth = ResidentGrowth() if trainer.device.type == "cpu" else None
    with _unchanged(trainer), Step("timing a few updates"):
        step_bytes = _measure_memory(trainer, largest)
        seconds = _measure_seconds(trainer, typical)
        step_growth = growth.peak() if growth is not None else None
        update_seconds, moments = _measure_update(trainer)
        pilot_growth = growth.peak() if growth is not None else None
        whole_growth = None
        if growth is not None and validate is not None:
            validate()
            whole_growth = growth.peak()
    pace = min(took / flops[step] for step, took in zip(typical, seconds, strict=True))  # the rest was disturbed
    parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    learned = sum(parameter.numel() for parameter in trainer.model.parameters() if parameter.requires_grad)
    gradients = FLOAT32 * learned
    # Gradients come as activations go, but where they wait for those of the next batch, or have a place of their own.
    they_stay = config.accumulate > 1 or isinstance(trainer.gradients, GraphedGradients)
    passing = step_bytes + gradients if they_stay else max(step_bytes, gradients)
    if step_growth is not None and pilot_growth is not None:
        # What the process really took for a step: also what the allocator and the kernels keep for themselves.
        passing = max(passing, step_growth + gradients if they_stay else step_growth, pilot_growth - moments)
    if whole_growth is not None:
        # A validation follows updates: their gradients are still there, which the pilot's are not, and the allocator
        # does not use all of their freed memory again.
        passing = max(passing, whole_growth + gradients) + KEPT_BYTES
    weights = FLOAT32 * parameters
    return Estimate(
        parameters=parameters,
        flops=round(mean * n_batches),
        memory_bytes=weights + moments + passing,
        seconds=pace * mean * n_batches + update_seconds * config.updates,
        device=trainer.device.type,
        base_bytes=None if growth is None or growth.before is None else max(growth.before - weights, 0),
    )


def in_words(estimate: Estimate) -> str:
    """One line to read before the run."""
    memory = f"{with_unit(estimate.peak_bytes, 'B')} of {'memory' if estimate.device == 'cpu' else 'device memory'}"
    if estimate.base_bytes is not None:
        memory += f" ({with_unit(estimate.memory_bytes, 'B')} for the training, the rest for Python and its libraries)"
    return (
        f"about {rough_duration(estimate.seconds)} on {estimate.device} for the training alone, "
        f"{with_unit(estimate.flops, 'FLOP')}, {memory}, {estimate.parameters:,} parameters"
    )


def compare(estimate: Estimate, truth: Truth) -> str:
    """One line to read after the run."""
    parts = [f"took {clock(truth.seconds)} (estimated {clock(estimate.seconds)})"]
    if truth.peak_bytes is not None:
        parts.append(f"{with_unit(truth.peak_bytes, 'B')} (estimated {with_unit(estimate.peak_bytes, 'B')})")
    done, planned = with_unit(truth.flops, "FLOP"), with_unit(estimate.flops, "FLOP")
    speed = with_unit(truth.flops / max(truth.seconds, 1e-9), "FLOP/s")
    parts.append(f"{done} at {speed}" if done == planned else f"{done} (estimated {planned}) at {speed}")
    return ", ".join(parts)


def rough_duration(seconds: float) -> str:
    """Two digits and the unit that suits them: 0.4 s, 59 s, 4 min, 1.5 h, 3 days."""
    rounded = float(f"{seconds:.2g}")  # first, so that no 60 s is left beside 1 min
    for size, unit, least in ((86400, "days", 2), (3600, "h", 1), (60, "min", 1)):
        if rounded >= least * size:
            return f"{_two_digits(rounded / size)} {unit}"
    return f"{_two_digits(rounded)} s"


def clock(seconds: float) -> str:
    """As a clock shows it: 0.4 s, 59 s, 4:12, 1:00:00, 3 days 0:04:12."""
    if seconds < 59.5:
        return f"{_two_digits(seconds)} s"
    minutes, second = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}:{second:02d}"
    days, minutes = divmod(minutes, 24 * 60)
    time_of_day = f"{minutes // 60}:{minutes % 60:02d}:{second:02d}"
    return f"{days} day{'s' if days > 1 else ''} {time_of_day}" if days else time_of_day


def with_unit(number: float, unit: str) -> str:
    """At least two digits and a power of a thousand: 512 B, 1.5 MB, 180 MB, 13 TFLOP."""
    prefix = ""
    for larger in "kMGTPEZY":
        if number < 999.5:
            break
        number, prefix = number / 1000, larger
    # Below a thousand there are no parts of a byte.
    return f"{number:.1f} {prefix}{unit}" if prefix and number < 9.95 else f"{number:.0f} {prefix}{unit}"


class ResidentGrowth:
    """By how much the resident memory of this process grows, from the moment this is made.

    Memory that was freed before goes back to the system first where that is possible: else it would be used again
    without growth.
    """

    def __init__(self) -> None:
        give_back_freed()
        forget_peak()
        # Where the system cannot forget, the peak is an older one, and higher than what is in use now.
        self._older_peak = peak_resident() or 0
        self.before = resident() or self._older_peak or None

    def peak(self) -> int | None:
        """The growth up to the highest peak so far; None if unknown, or if an older, higher peak hides it."""
        now = peak_resident()
        return None if now is None or self.before is None or now <= self._older_peak else now - self.before


class MemoryWatch:
    """The most memory that a run takes, from the moment this is made to the moment it is asked.

    On cuda it is what torch allocates for the run, weights included. On a CPU it is all that the process holds: what a
    run uses again of memory that was freed before it cannot be told apart from what it does not use.
    """

    def __init__(self, trainer: Trainer[Batch]):
        self.device = trainer.device
        self._weights = sum(parameter.nbytes for parameter in trainer.model.parameters())
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            self._before = torch.cuda.memory_allocated(self.device)
        else:
            give_back_freed()
            forget_peak()
            # Where the system cannot forget, this is an older peak that may hide the one of the run.
            self._older_peak = peak_resident() or 0

    def peak_bytes(self) -> int | None:
        """None where it is unknown: on other devices, and where an older, higher peak of the process hides it."""
        if self.device.type == "cuda":
            now = torch.cuda.max_memory_allocated(self.device)
            return None if now <= self._before else now - self._before + self._weights
        found = peak_resident() if self.device.type == "cpu" else None
        return None if found is None or found <= self._older_peak else found


@contextmanager
def _unchanged(trainer: Trainer[Batch]) -> Iterator[None]:
    """Train as the trainer would, then put back gradients, random state, and which module was training."""
    modes = [(module, module.training) for module in trainer.model.modules()]
    gradients = [(parameter, parameter.grad) for parameter in trainer.model.parameters()]
    devices = [trainer.device] if trainer.device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices):
            trainer.model.train()
            for parameter, _ in gradients:
                parameter.grad = None
            yield
    finally:
        for module, was_training in modes:
            module.training = was_training
        for parameter, gradient in gradients:
            parameter.grad = gradient


def _measure_seconds(trainer: Trainer[Batch], steps: list[int]) -> list[float]:
    """Of each step, from asking for its batch to its last gradient, on the trainer's own path."""
    # Another one of its kind: what it records must not outlast the gradients of this pilot.
    gradients = type(trainer.gradients)(
        trainer.model,
        trainer.gradients.loss,
        device=trainer.device,
        autocast=lambda: autocast(trainer.precision, trainer.device),
    )
    seconds = []
    for step in steps:
        _wait_for(trainer.device)
        began = time.perf_counter()
        gradients.clear()
        batch = trainer.batches[step]
        gradients.add(batch, divisor=max(batch.n_target_tokens, 1), scale=1.0)
        _wait_for(trainer.device)
        seconds.append(time.perf_counter() - began)
    return seconds


def _measure_update(trainer: Trainer[Batch]) -> tuple[float, int]:
    """The seconds of the gradients' norm and the optimizer's step, on a copy of the model; the bytes of its moments."""
    frozen = [parameter for parameter in trainer.model.parameters() if not parameter.requires_grad]
    copied = copy.deepcopy(trainer.model, {id(parameter): parameter for parameter in frozen})
    learned = [parameter for parameter in copied.parameters() if parameter.requires_grad]
    gradients = [torch.zeros_like(parameter) for parameter in learned]
    for parameter, gradient in zip(learned, gradients, strict=True):
        parameter.grad = gradient
    optimizer = make_optimizer(copied, trainer.config)
    took = []
    for _ in range(1 + TIMED):  # the first time makes the moments
        began = time.perf_counter()
        nn.utils.get_total_norm(gradients).item()
        optimizer.step()
        _wait_for(trainer.device)
        took.append(time.perf_counter() - began)
    kept = (value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor))
    return min(took), sum(value.nbytes for value in kept if value.dim())


def _wait_for(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _measure_memory(trainer: Trainer[Batch], step: int) -> int:
    """The most bytes that a forward and backward hold at one time, beside the weights."""
    learned = [parameter for parameter in trainer.model.parameters() if parameter.requires_grad]
    if trainer.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(trainer.device)
        before = torch.cuda.memory_allocated(trainer.device)
        torch.autograd.grad(_loss(trainer, step), learned, allow_unused=True)
        return torch.cuda.max_memory_allocated(trainer.device) - before
    # Elsewhere torch keeps no count, but every tensor that waits for the backward passes by here.
    sizes: dict[int, int] = {}

    def note(saved: Tensor) -> Tensor:
        storage = saved.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return saved.detach()  # the tensor itself could hold its own graph alive

    with torch.autograd.graph.saved_tensors_hooks(note, lambda saved: saved):
        loss = _loss(trainer, step)
    torch.autograd.grad(loss, learned, allow_unused=True)
    for parameter in trainer.model.parameters():
        sizes.pop(parameter.untyped_storage().data_ptr(), None)
    # The backward begins at the largest, usually the logits: one gradient has come to it, another leaves it.
    return sum(sizes.values()) + 2 * max(sizes.values(), default=0)


def _loss(trainer: Trainer[Batch], step: int) -> Tensor:
    batch = trainer.batches[step].to(trainer.device)
    with autocast(trainer.precision, trainer.device):
        return trainer.gradients.loss(batch)  # type: ignore[arg-type]


def _two_digits(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0") if number < 9.95 else f"{number:.0f}"
