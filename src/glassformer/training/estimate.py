"""Estimate the time, memory and operations of a training run before it starts, and compare with the actual values.

Floating-point operations are computed from the shapes of the batches. Time and memory of a step are measured on three
batches, without changing the model. The memory estimate includes validations, whose memory is measured on a sample of
the validation data. The time estimate covers updates only, like `TrainState.seconds`.
"""

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor, nn

from glassformer.base.freed_memory import give_back_freed
from glassformer.models.training_costs import STATE_BYTES, state_bytes
from glassformer.progress import Step
from glassformer.training.gradients import Batch, GraphedGradients
from glassformer.training.optimizers import make_optimizer
from glassformer.training.resident_memory import ResidentGrowth, forget_peak, peak_resident
from glassformer.training.sharded_tensors import local_tensors
from glassformer.training.trainer import Trainer

LOOKED_AT = 64
"""Number of batches whose floating-point operations are averaged, from the first batch on."""
TIMED = 2
"""Number of batches that are timed, after one batch that warms up allocator and kernels."""
MEASURED_PARAMETERS = 5 * 10**8
"""Of models with more parameters, about as many as this are updated for the measurement."""
KEPT_BYTES = 20 * 10**6
"""Bytes that are added on a CPU for validations: the whole validation data has larger batches than the measured sample,
and the allocator fragments."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The expected cost of a whole training run."""

    parameters: int
    """Number of parameters, frozen ones included."""
    flops: int
    """Floating-point operations of all updates."""
    memory_bytes: int
    """Peak memory of updates and validations: weights, gradients, optimizer moments, activations and workspace. On a
    CPU it also contains memory that the allocator reserves, because there the growth of the process is measured."""
    seconds: float
    """Time of the updates, without validations and saves."""
    device: str
    """Type of the device, such as cpu or cuda."""
    base_bytes: int | None = None
    """On a CPU: resident memory of the process before the run, without the weights. None if unknown."""

    @property
    def peak_bytes(self) -> int:
        """Expected peak memory in bytes: that of the whole process on a CPU, that of the run alone on other devices."""
        return self.memory_bytes + (self.base_bytes or 0)


@dataclass(frozen=True, kw_only=True)
class MeasuredCost:
    """The measured cost of a finished training run, to compare with its `Estimate`."""

    flops: int
    """Floating-point operations of the updates made; fewer than estimated if the run ended early."""
    peak_bytes: int | None
    """Peak memory: on a CPU of the whole process, on other devices of the run; None if unknown."""
    seconds: float
    """Time of the updates, without validations and saves."""


def estimate_run(
    trainer: Trainer[Batch], flops_of: Callable[[Batch], int], validate: Callable[[], object] | None = None
) -> Estimate:
    """Estimate the cost of `trainer.run()` for a run that starts at its first update.

    A few batches are trained to measure time and memory. Afterwards parameters, gradients, optimizer state and random
    state are as before.

    Args:
        flops_of: Returns the floating-point operations of a forward and backward pass over a batch.
        validate: Scores a sample of the validation data, on a CPU or with CUDA, to measure the memory it needs.
    """
    config = trainer.config
    n_batches = config.updates * config.accumulate
    flops = [flops_of(trainer.batches[step]) for step in range(min(LOOKED_AT, n_batches))]
    mean = sum(flops) / len(flops)
    largest = max(range(len(flops)), key=flops.__getitem__)
    typical = sorted(range(len(flops)), key=lambda step: abs(flops[step] - mean))[:TIMED]
    if trainer.device.type != "cpu":
        typical *= 2  # the first step of each shape selects or records kernels
    growth = ResidentGrowth() if trainer.device.type == "cpu" else None
    if trainer.parallel.is_active:
        return _estimate_together(trainer, [largest, *typical], flops, mean * n_batches, growth)
    with _unchanged(trainer), Step("timing a few updates"):
        step_bytes = _measure_memory(trainer, largest)
        seconds = _measure_seconds(trainer, typical)
        step_growth = growth.peak() if growth is not None else None
        update_seconds, moments = _measure_update(trainer)
        pilot_growth = growth.peak() if growth is not None else None
        whole_growth, validation_bytes = None, 0
        if validate is not None and trainer.device.type == "cuda":
            validation_bytes = _measure_peak(trainer.device, validate)
        if growth is not None and validate is not None:
            validate()
            whole_growth = growth.peak()
    # The fastest step counts: other programs disturbed the slower ones.
    pace = min(took / flops[step] for step, took in zip(typical, seconds, strict=True))
    parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    learned = sum(parameter.numel() for parameter in trainer.model.parameters() if parameter.requires_grad)
    in_copy, is_graphed = trainer.gradients.stays_in_copy, isinstance(trainer.gradients, GraphedGradients)
    in_float32 = round(state_bytes(0, learned, moments=0))
    gradients = in_float32 if not in_copy else trainer.setup.copy_bytes if is_graphed else 0
    # Gradients replace activations, and those of a copy exist beside those of the model, unless they are accumulated
    # over passes or preallocated for CUDA graphs. Graphs that contain a copy allocate them after the backward pass.
    is_moved = trainer.gradients.copy is not None and not in_copy
    is_kept = growth is not None if is_moved else is_graphed
    they_stay = config.accumulate * config.passes > 1 or is_kept
    passing = step_bytes + gradients if they_stay else max(step_bytes, gradients + trainer.setup.copy_bytes)
    if step_growth is not None and pilot_growth is not None:
        # The measured growth also contains what allocator and kernels reserve.
        passing = max(passing, step_growth + gradients if they_stay else step_growth, pilot_growth - moments)
    passing = max(passing, validation_bytes + gradients)
    if whole_growth is not None:
        # During a validation the gradients of the last update still exist, unlike in this pilot, and the allocator
        # cannot reuse all memory that the update has freed.
        passing = max(passing, whole_growth + gradients) + KEPT_BYTES
    weights = round(state_bytes(parameters, 0))
    saved = weights + moments if config.async_save == "on" and growth is not None else 0  # the copy that is written
    states = state_bytes(parameters, 0, moments=moments, copy=trainer.setup.copy_bytes)
    return Estimate(
        parameters=parameters,
        flops=round(mean * n_batches * config.passes),
        memory_bytes=round(states) + passing + saved,
        seconds=pace * mean * n_batches * config.passes + update_seconds * config.updates,
        device=trainer.device.type,
        base_bytes=None if growth is None or growth.before is None else max(growth.before - weights, 0),
    )


def _estimate_together(
    trainer: Trainer[Batch], steps: list[int], flops: list[int], total: float, growth: ResidentGrowth | None
) -> Estimate:
    """Estimate a run of several processes, from some steps that they make together: time and memory of each process.

    The first of `steps` is not timed. `flops` are the operations of each step in all processes, `total` those of the
    run. All processes return the leader's values.
    """
    model, parallel, device = trainer.model, trainer.parallel, trainer.device
    n_parts = parallel.layout.n_parts  # each process takes whole batches, or else some rows of each batch
    n_batches = n_parts if trainer.config.accumulate % n_parts == 0 else 1
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    seconds = []
    with _unchanged(trainer), Step("timing a few updates"):
        for step in steps:
            _wait_for(device)
            began = time.perf_counter()
            trainer.gradients.clear()
            for batch, _ in parallel.share([trainer.batches[step]] * n_batches):
                trainer.gradients.add(batch, divisor=max(batch.n_target_tokens, 1), scale=1.0)
            _wait_for(device)
            seconds.append((time.perf_counter() - began) / n_batches)
        trainer.gradients.clear()
        step_bytes = torch.cuda.max_memory_allocated(device) if growth is None else growth.peak() or 0
        update_seconds, moments = _measure_update(trainer)
    own = sum(part.nbytes for part in local_tensors([parameter.data for parameter in model.parameters()]))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    # On a GPU the step has measured weights and gradients. On a CPU, `growth` contains neither.
    states = moments + (2 * own if growth is not None else 0)
    if growth is not None and trainer.config.async_save == "on":
        states += own + moments  # the copy that is being written
    if parallel.layout.is_sharded:  # a validation puts the whole model together
        step_bytes = max(step_bytes, STATE_BYTES["weights"] * parameters + (2 * own if growth is None else 0))
    estimate = Estimate(
        parameters=parameters,
        flops=round(total),
        memory_bytes=step_bytes + states,
        seconds=min(took / flops[step] for took, step in zip(seconds[1:], steps[1:], strict=True)) * total
        + update_seconds * trainer.config.updates,
        device=device.type,
        base_bytes=None if growth is None or growth.before is None else max(growth.before - own, 0),
    )
    return parallel.processes.broadcast(estimate)


def in_words(estimate: Estimate) -> str:
    """Return the estimate as one line of text, to print before the run."""
    memory = f"{with_unit(estimate.peak_bytes, 'B')} of {'memory' if estimate.device == 'cpu' else 'device memory'}"
    if estimate.base_bytes is not None:
        memory += f" ({with_unit(estimate.memory_bytes, 'B')} for training, the rest for Python and its libraries)"
    return (
        f"about {rough_duration(estimate.seconds)} on {estimate.device} for the updates alone, "
        f"{with_unit(estimate.flops, 'FLOP')}, {memory}, {estimate.parameters:,} parameters"
    )


def compare(estimate: Estimate, truth: MeasuredCost) -> str:
    """Return one line of text with the actual cost `truth` and the estimate, to print after the run."""
    parts = [f"took {clock(truth.seconds)} (estimated {clock(estimate.seconds)})"]
    if truth.peak_bytes is not None:
        parts.append(f"{with_unit(truth.peak_bytes, 'B')} (estimated {with_unit(estimate.peak_bytes, 'B')})")
    done, planned = with_unit(truth.flops, "FLOP"), with_unit(estimate.flops, "FLOP")
    speed = with_unit(truth.flops / max(truth.seconds, 1e-9), "FLOP/s")
    parts.append(f"{done} at {speed}" if done == planned else f"{done} (estimated {planned}) at {speed}")
    return ", ".join(parts)


def rough_duration(seconds: float) -> str:
    """Format a duration rounded to two significant digits: 0.4 s, 59 s, 4 min, 1.5 h, 3 days."""
    rounded = float(f"{seconds:.2g}")  # round first, so that 59.9 becomes 1 min instead of 60 s
    for size, unit, least in ((86400, "days", 2), (3600, "h", 1), (60, "min", 1)):
        if rounded >= least * size:
            return f"{_two_digits(rounded / size)} {unit}"
    return f"{_two_digits(rounded)} s"


def clock(seconds: float) -> str:
    """Format a duration to the second, with colons from one minute on: 0.4 s, 59 s, 4:12, 1:00:00, 3 days 0:04:12."""
    if seconds < 59.5:
        return f"{_two_digits(seconds)} s"
    minutes, second = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}:{second:02d}"
    days, minutes = divmod(minutes, 24 * 60)
    time_of_day = f"{minutes // 60}:{minutes % 60:02d}:{second:02d}"
    return f"{days} day{'s' if days > 1 else ''} {time_of_day}" if days else time_of_day


def with_unit(number: float, unit: str) -> str:
    """Format a number with a decimal prefix and at least two digits: 512 B, 1.5 MB, 180 MB, 13 TFLOP."""
    prefix = ""
    for larger in "kMGTPEZY":
        if number < 999.5:
            break
        number, prefix = number / 1000, larger
    # Without a prefix the number is whole.
    return f"{number:.1f} {prefix}{unit}" if prefix and number < 9.95 else f"{number:.0f} {prefix}{unit}"


class MemoryWatch:
    """Measures the peak memory of a training run, from the creation of this object on.

    On CUDA the peak counts the memory that torch allocates for the run, weights included. On a CPU it is the resident
    memory of the whole process, because memory that the run reuses looks the same as memory that it does not use.
    """

    def __init__(self, trainer: Trainer[Batch]):
        self.device = trainer.device
        # What exists already: the weights, and the copy that computes the gradients.
        self._weights = sum(parameter.nbytes for parameter in trainer.model.parameters()) + trainer.setup.copy_bytes
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            self._before = torch.cuda.memory_allocated(self.device)
        else:
            give_back_freed()
            forget_peak()
            # If the system cannot reset the peak, a higher peak before the run may hide that of the run.
            self._older_peak = peak_resident() or 0

    def peak_bytes(self) -> int | None:
        """Return the peak memory in bytes.

        It is None on devices other than CPU and CUDA, or if the process had a higher peak before the run.
        """
        if self.device.type == "cuda":
            now = torch.cuda.max_memory_allocated(self.device)
            return None if now <= self._before else now - self._before + self._weights
        found = peak_resident() if self.device.type == "cpu" else None
        return None if found is None or found <= self._older_peak else found


@contextmanager
def _unchanged(trainer: Trainer[Batch]) -> Iterator[None]:
    """Context manager for measurements: the model is in training mode and has no gradients.

    At the end it restores the gradients, the random state and the mode of every module.
    """
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
    """Return the seconds that each of these steps takes: making its batch, forward pass and backward pass."""
    # A new object of the trainer's class: CUDA graphs recorded here refer to gradients that are restored later.
    gradients = trainer.setup.gradients(trainer.gradients.loss)
    seconds = []
    for step in steps:
        _wait_for(trainer.device)
        began = time.perf_counter()
        gradients.clear()
        batch = trainer.batches[step]
        gradients.add(batch, divisor=max(batch.n_target_tokens, 1), scale=1.0)
        _wait_for(trainer.device)
        seconds.append(time.perf_counter() - began)
    gradients.clear()
    return seconds


def _measure_update(trainer: Trainer[Batch]) -> tuple[float, int]:
    """Return the seconds of one optimizer step with its gradient norm, and the bytes of the optimizer's moments.

    Both are measured on a copy of the model, so that the parameters do not change. A process that holds parts of the
    parameters steps those alone. Of a large model some parameters are copied: its whole copy might not fit into memory.
    """
    own = [parameter for parameter in trainer.model.parameters() if parameter.requires_grad]
    sizes = list(accumulate(parameter.numel() for parameter in own))
    is_large = sizes[-1] > MEASURED_PARAMETERS
    if trainer.parallel.layout.is_sharded or is_large:
        some = [one for one, size in zip(own, sizes, strict=True) if not is_large or size <= MEASURED_PARAMETERS]
        copied: nn.Module = nn.ParameterList(
            [part.clone() for part in local_tensors([p.data for p in some or own[:1]])]
        )
    else:
        frozen = [parameter for parameter in trainer.model.parameters() if not parameter.requires_grad]
        copied = copy.deepcopy(trainer.model, {id(parameter): parameter for parameter in frozen})
    learned = [parameter for parameter in copied.parameters() if parameter.requires_grad]
    gradients = [torch.zeros_like(parameter) for parameter in learned]
    for parameter, gradient in zip(learned, gradients, strict=True):
        parameter.grad = gradient
    optimizer = make_optimizer(copied, trainer.config)
    took = []
    for _ in range(1 + TIMED):  # the first step creates the moments
        began = time.perf_counter()
        nn.utils.get_total_norm(gradients).item()
        optimizer.step()
        _wait_for(trainer.device)
        took.append(time.perf_counter() - began)
    kept = (value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor))
    whole = sum(part.numel() for part in local_tensors([p.data for p in own])) / sum(p.numel() for p in learned)
    return min(took) * whole, round(sum(value.nbytes for value in kept if value.dim()) * whole)


def _measure_peak(device: torch.device, action: Callable[[], object]) -> int:
    """Return by how many bytes the memory that torch allocates on a CUDA device grows while `action` runs."""
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    action()
    return torch.cuda.max_memory_allocated(device) - before


def _wait_for(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _measure_memory(trainer: Trainer[Batch], step: int) -> int:
    """Return the peak bytes of the forward and backward pass of a step, without the weights.

    On CUDA they are measured. On other devices they are estimated from the tensors that autograd saves.
    """
    if trainer.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(trainer.device)
        before = torch.cuda.memory_allocated(trainer.device)
        _differentiate(trainer, _loss(trainer, step))
        return torch.cuda.max_memory_allocated(trainer.device) - before
    # On other devices torch has no memory statistics. Sum the tensors that autograd saves for the backward pass.
    sizes: dict[int, int] = {}

    def note(saved: Tensor) -> Tensor:
        storage = saved.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return saved.detach()  # the tensor itself would keep its graph alive

    with torch.autograd.graph.saved_tensors_hooks(note, lambda saved: saved):
        loss = _loss(trainer, step)
    _differentiate(trainer, loss)
    for parameter in trainer.model.parameters():
        sizes.pop(parameter.untyped_storage().data_ptr(), None)
    # The backward pass starts at the largest tensor, usually the logits, with two gradients of its size.
    return sum(sizes.values()) + 2 * max(sizes.values(), default=0)


def _differentiate(trainer: Trainer[Batch], loss: Tensor) -> None:
    with trainer.gradients.layers(), trainer.gradients.attention():  # the same as in the forward pass (checkpointing)
        torch.autograd.grad(loss, trainer.gradients.learned, allow_unused=True)


def _loss(trainer: Trainer[Batch], step: int) -> Tensor:
    batch = trainer.batches[step].to(trainer.device)
    with trainer.gradients.layers(), trainer.gradients.autocast():
        return trainer.gradients.loss(batch)  # type: ignore[arg-type]


def _two_digits(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0") if number < 9.95 else f"{number:.0f}"
