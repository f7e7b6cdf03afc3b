"""The training loop, the same for every task.

    run:      load the newest checkpoint
              until all planned updates are made or validation has stopped improving:
                  validate and save a checkpoint, if due
                  update
              return the parameters of the best checkpoint, or the average of the last ones if that is better

    update:   gradient = Σ over the accumulated batches of ∇ (sum of token losses) / (target tokens of all of them)
              skip the update if the gradient is not finite
              clip the gradient's norm, set the learning rate that the schedule gives, step the optimizer

The loss is divided by the tokens of all accumulated batches, not averaged batch by batch, so that these batches have
the same effect as one large batch. In a run of several processes (`parallel.py`) each takes a part of these batches,
and losses and gradients are summed over the processes.

The batches (`data/batching/data_order.py`), the dropout and the learning rate of an update are functions of the seed,
the update's number and the plan: the number of updates and the learning-rate schedule, saved in `run.json`. A run that
is interrupted anywhere, even between two accumulated batches, and resumed therefore ends with the same bits as an
uninterrupted one (on the same device and versions).
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from glassformer.data.batching.update_batches import UpdateBatches
from glassformer.progress import Step
from glassformer.runtime.devices import choose_device
from glassformer.training.adversarial import shifted_embeddings, token_tables
from glassformer.training.background_save import BackgroundSave, is_save_due, saves_in_background
from glassformer.training.checkpoint_choice import best_evaluation, choose_parameters, discard_old
from glassformer.training.gradient_setup import GradientSetup
from glassformer.training.gradients import Batch, TrainBatch, mix_seed, seed_device
from glassformer.training.optimizers import make_optimizer
from glassformer.training.parallel import Parallel
from glassformer.training.precision import choose_precision
from glassformer.training.prefetch import GetBatches, get_batches, prefetching
from glassformer.training.schedules import Plan, simple_plan
from glassformer.training.sharded_tensors import local_tensors
from glassformer.training.started_update import StartedUpdate, Update, can_apply_on_device, divide_gradients
from glassformer.training.state import (
    Evaluation,
    NotFiniteError,
    TrainState,
    checkpoint_path,
    load_newest,
    newest_saved,
    prepare_checkpoint,
)
from glassformer.training.stop_signals import Interrupted, StopSignals
from glassformer.training.train_config import TrainConfig

MAX_BAD = 5
"""Number of consecutive updates without finite gradients after which a run has diverged."""
START_SCALE, SCALE_GROWTH = 2.0**16, 2000
"""Loss scaling of fp16: the first factor, and the number of updates without overflow after which it doubles. It is
halved at every overflow."""

AnyBatch = TypeVar("AnyBatch", bound=TrainBatch, covariant=True)


class Batches(Protocol[AnyBatch]):
    """The interface of the training data: an endless sequence of batches, with random access."""

    def __getitem__(self, number: int) -> AnyBatch:
        """Return batch `number`, counted from 0 over the whole run. It does not depend on earlier calls."""


class DivergedError(RuntimeError):
    """Training diverged: MAX_BAD consecutive updates had no finite gradient, or a parameter is NaN or infinite."""


@dataclass(kw_only=True)
class Trainer(Generic[Batch]):
    """Trains a model with gradient accumulation, validation, checkpoints and exact resume.

    `run()` resumes from the newest checkpoint in `folder`, if there is one. A *position* is the number of updates tried
    so far; it selects the batches and the dropout. The *update* number counts the updates that changed the parameters;
    it selects the learning rate. They differ by the updates that were skipped because a gradient was not finite.
    """

    model: nn.Module
    config: TrainConfig
    batches: Batches[Batch]
    loss: Callable[[Batch], Tensor]
    """Returns the *sum* of a batch's token losses. The trainer divides it by the tokens of all accumulated batches."""
    loss_of: Callable[[nn.Module], Callable[[Batch], Tensor]] | None = None
    """Returns the loss function of a copy of the model, as `loss` is that of `model`. Copies compute gradients faster
    on a GPU (`compute_copy.py`), and can be compiled. None makes no copies."""
    evaluate: Callable[[], dict[str, float]]
    """Returns validation scores by name. `config.metric`, or else the first score, selects the best checkpoint."""
    folder: Path
    """Folder of the checkpoints."""
    plan: Plan | None = None
    """Number of updates and learning-rate schedule; None takes them from `config`."""
    correct: Callable[[TrainState], Plan | None] = lambda state: None
    """Called before each update. Returns the plan to follow from here on, after recording it; None keeps the plan."""
    is_correction_due: Callable[[TrainState], bool] = lambda state: False
    """Returns whether `correct` may change the plan at this state, without changing anything."""
    wants_validation: Callable[[TrainState], bool] = lambda state: False
    """Called before each update. Returns whether to validate now, in addition to every `config.eval_every` updates."""
    on_update: Callable[[Update], None] = lambda update: None
    on_evaluation: Callable[[Evaluation], None] = lambda evaluation: None
    on_save: Callable[[Path], None] = lambda path: None
    """Called with the folder of each new checkpoint."""
    warn: Callable[[str], None] = print
    parallel: Parallel = field(default_factory=Parallel)
    """The processes that share this run, and how they share the model and its batches."""

    def __post_init__(self) -> None:
        self.device = choose_device(self.config.device)
        self.precision = choose_precision(self.config.precision, self.device, self.model)
        self.whole_model = self.model
        """The model that `evaluate` scores. If `model` is sharded, it has values during validations only."""
        self.model = self.parallel.apply(self.model, self.device)
        if self.config.adversarial and not token_tables(self.model):
            raise ValueError(
                f"adversarial={self.config.adversarial}: this model's token embeddings are not trained, expected 0"
            )
        self.setup: GradientSetup[Batch] = GradientSetup(
            model=self.model,
            config=self.config,
            device=self.device,
            precision=self.precision,
            loss=self.loss,
            loss_of=self.loss_of,
            warn=lambda message: self.warn(message),
            parallel=self.parallel,
            sample=self.batches[0] if self.parallel.is_active else None,
        )
        # Sharding replaces the parameters, so that the optimizer comes after it.
        self.optimizer = make_optimizer(self.model, self.config)
        is_simple = self.precision != "fp16" and self.parallel.processes.size == 1 and not self.config.offload
        self.is_async = can_apply_on_device(self.optimizer, self.device) and is_simple
        if self.is_async:
            self.setup.use_copy_update(self.optimizer)
        self.gradients = self.setup.gradients()
        self.state = TrainState()
        self._started: StartedUpdate | None = None
        self._finished_at = 0.0
        self._get_batches: GetBatches[Batch] = lambda numbers: get_batches(self._update_batches, numbers)
        self.validation_seconds: float | None = None
        """Duration of the last validation in this process; None before the first."""
        self.save_seconds = 0.0
        """Duration of the last save in this process."""
        self._signals = StopSignals()
        self._saving = BackgroundSave()

    def run(self) -> dict[str, Tensor]:
        """Train until the plan ends or validation stops improving, then choose parameters, load and return them.

        They are the best checkpoint's, or the average of the last ones if that is at least as good. Raises Interrupted
        after SIGINT or SIGTERM, and DivergedError if training diverged.
        """
        self.state = load_newest(self.folder, self.model, self.optimizer, self.warn, self.parallel.writers)
        self.state.is_compiled = self.setup.is_compiled
        self.state.has_cpu_kernels = self.setup.cpu_layers is not None
        self.state.has_bf16_kernels = self.setup.cpu_layers is not None and self.setup.cpu_layers.in_bf16
        self.setup.pull()
        if not self.state.position or self.precision != "fp16":
            self.state.loss_scale = START_SCALE if self.precision == "fp16" else 1.0
        loading = prefetching(self._update_batches, self.device)
        with self._signals.handling(), self._saving, loading as self._get_batches:
            while True:
                if self._started is None or self._is_state_needed():
                    self._finish_started()
                    # Before each update instead of after, so that a run stopped in between misses no validation.
                    if self._is_evaluation_due():
                        self.validate()
                        self._start_save()
                    elif is_save_due(self.config, self.device, self.state.position):
                        self._start_save()
                    self.plan = self.correct(self.state) or self.plan
                    if self._is_over():
                        break
                self._update()
        return choose_parameters(self)

    def save(self) -> None:
        """Write a checkpoint; keep only the newest, the best and the last `keep_last` at multiples of `save_every`."""
        self._start_save()
        self._saving.wait()

    def _start_save(self) -> None:
        """Save as `save` does. With `async_save` the files are written while the training continues."""
        self._finish_started()
        began = time.perf_counter()
        self._saving.wait()
        is_new = not checkpoint_path(self.folder, self.state.position).exists()
        in_background = saves_in_background(self.config, self.device)
        try:
            path, write = prepare_checkpoint(
                self.folder, self.state, self.model, self.optimizer, self.parallel.writers, copied=in_background
            )
        except NotFiniteError as error:
            raise self._diverged(str(error)) from error
        best = self.best()

        def write_and_discard() -> None:
            write()
            if self.parallel.processes.is_leader:
                discard_old(self.folder, best, self.config)

        def report() -> None:
            if is_new:
                self.on_save(path)

        self._saving.start(write_and_discard, report, in_thread=in_background)
        self.save_seconds = time.perf_counter() - began
        self.state.other_seconds += self.save_seconds

    def best(self) -> Evaluation | None:
        """Return the best validation so far, the earliest one if several are equal; None before the first."""
        return best_evaluation(self.state.evaluations, self.config.metric)

    @cached_property
    def _update_batches(self) -> UpdateBatches[Batch]:
        return UpdateBatches(self.batches, self.config.accumulate, self._plan.ramp(self.config.batch_ramp))

    @property
    def _plan(self) -> Plan:
        return self.plan or simple_plan(self.config.updates, self.config.warmup, self.config.batch_ramp)

    def _is_evaluation_due(self) -> bool:
        state = self.state
        is_done = bool(state.evaluations) and state.evaluations[-1].position == state.position
        if not state.position or is_done:
            return False
        is_place = state.position % self.config.eval_every == 0 or state.update >= self._plan.end
        return is_place or self.wants_validation(state)

    def _is_over(self) -> bool:
        if self.state.update >= self._plan.end:
            return True
        best = self.best()
        if not self.config.patience or best is None:
            return False
        since = [e for e in self.state.evaluations if e.position > best.position]
        return len(since) >= self.config.patience

    def _update(self) -> None:
        """Make one update from one or several batches, equal to one from a batch with all their sequences.

        On a GPU the numbers of an update are read after the next one has been started, so that the GPU never waits.
        """
        began = time.perf_counter()
        config, state = self.config, self.state
        position = state.position + (self._started is not None)
        (batches,) = self._get_batches([position])
        tokens = sum(batch.n_target_tokens for batch in batches)
        self.model.train()
        self.gradients.clear()
        losses = []
        shares = self.parallel.share(batches)
        for index, (batch, is_counted) in enumerate(shares):
            with self.parallel.passing(is_last=index == len(shares) - 1):
                losses.append(self._add_gradient(batch, tokens if is_counted else math.inf, position, index))
            if not self.parallel.is_active:
                self._stop_if_asked()
        losses = self.parallel.total_loss(losses, self.device)
        if config.adversarial:
            with shifted_embeddings(self.model, config.adversarial):
                for index, batch in enumerate(batches):
                    self._add_gradient(batch, tokens, position, len(batches) + index)
        norm = self._gradient_norm()
        started, before = StartedUpdate(losses, norm, tokens, self._next_lr(), began), self._started
        if self.is_async:
            step = partial(self.setup.step, self.optimizer, self.gradients)
            started.apply_on_device(self.optimizer, config.clip, step)
            self._started = started
            if before is not None:
                self._finish(before)
        else:
            self._finish(started)
        self._stop_if_asked()

    def _next_lr(self) -> float:
        """Return the learning rate of the next update.

        An async run does not know yet whether the update before it was skipped, so it counts that one as made. A
        resumed run does know, and counts it as made nevertheless, to compute the same.
        """
        is_last_skipped = self.state.skipped > 0 and self.state.good_in_a_row == 0
        made = self.state.update + (self.is_async and (self._started is not None or is_last_skipped))
        return self._plan.lr(self.config.schedule, self.config.lr, made + 1)

    def _finish(self, started: StartedUpdate) -> None:
        """Read the numbers of an update, step the optimizer unless the device has done so, and count the update."""
        state, lr = self.state, started.lr
        total, norm = started.read()
        state.position += 1
        if math.isfinite(norm) and math.isfinite(total):
            if not self.is_async:
                self._apply(lr, norm)
            self._count_update()
            state.tokens += started.tokens
        else:
            self._skip()
        now, recording = time.perf_counter(), self.gradients.recording_seconds
        seconds = now - max(started.began, self._finished_at) - recording
        self._finished_at, self.gradients.recording_seconds = now, 0.0
        state.seconds, state.other_seconds = state.seconds + seconds, state.other_seconds + recording
        self.on_update(Update(state.position, state.update, total, lr, norm, started.tokens, seconds, state.skipped))

    def _finish_started(self) -> None:
        """Finish the update that was started and whose numbers were not read, if there is one."""
        started, self._started = self._started, None
        if started is not None:
            self._finish(started)

    def _is_state_needed(self) -> bool:
        """Whether the started update must be finished before the next one, because a save or the like may be due."""
        expected = replace(self.state, position=self.state.position + 1, update=self.state.update + 1)
        is_pause = expected.position % self.config.eval_every == 0 or expected.update >= self._plan.end
        is_pause = is_pause or is_save_due(self.config, self.device, expected.position)
        return is_pause or self.wants_validation(expected) or self.is_correction_due(expected)

    def _add_gradient(self, batch: Batch, tokens: float, position: int, index: int) -> "Tensor | float":
        """Add the gradient of one pass over a batch, and return the batch's summed loss divided by `tokens`.

        `index` is the number of the pass within the update; it seeds the dropout.
        """
        part = (self.parallel.part,) if self.parallel.part else ()
        seed_device(mix_seed(self.config.seed, position, index, *part), self.device)
        scale = self.state.loss_scale * self.parallel.layout.n_parts  # DDP and FSDP2 average over the parts
        return self.gradients.add(batch, divisor=max(tokens, 1), scale=scale)

    def _gradient_norm(self) -> Tensor:
        """Divide the gradients by the loss scale of fp16, in place, and return their total norm."""
        if self.state.loss_scale != 1.0:
            torch._foreach_div_(local_tensors(self.gradients.of_model()), self.state.loss_scale)
        return self.setup.norm(self.gradients)

    def _apply(self, lr: float, norm: float) -> None:
        """Clip the gradient, whose norm is `norm`, and step the optimizer with learning rate `lr`."""
        divisor = max(1.0, norm / self.config.clip) if self.config.clip else 1.0
        in_step = self.setup.cpu_layers is not None
        divide_gradients(self.optimizer, self.gradients.of_model(), divisor, in_step=in_step)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.setup.step(self.optimizer, self.gradients)

    def _count_update(self) -> None:
        self.state.update += 1
        self.state.bad_in_a_row = 0
        self.state.good_in_a_row += 1
        if self.precision == "fp16" and self.state.good_in_a_row % SCALE_GROWTH == 0:
            self.state.loss_scale *= 2

    def _skip(self) -> None:
        """Count an update that is left out because its loss or gradient is not finite.

        If fp16 has a loss scale above 1, halve it. Otherwise, MAX_BAD such updates in a row raise DivergedError.
        """
        state = self.state
        state.skipped += 1
        state.good_in_a_row = 0
        if state.loss_scale > 1.0:  # fp16: the loss scale was too large for this batch; that is no divergence
            state.loss_scale = max(state.loss_scale / 2, 1.0)
            return
        state.bad_in_a_row += 1
        if state.bad_in_a_row >= MAX_BAD:
            raise self._diverged(f"{MAX_BAD} steps in a row had NaN or infinite gradients at update {state.update}")

    def _diverged(self, what: str) -> DivergedError:
        advice = "A lower lr, a longer warmup or precision='fp32' may help"
        return DivergedError(f"the training diverged: {what}; {newest_saved(self.folder)}. {advice}")

    def validate(self, *, is_average: bool = False) -> None:
        """Validate and record the scores. `is_average` says that the model has the average of the last checkpoints."""
        began = time.perf_counter()
        self.whole_model.eval()
        with torch.inference_mode(), Step("validating"):
            scores = self.parallel.evaluate(self.evaluate, self.model, self.whole_model)
        self.validation_seconds = time.perf_counter() - began
        self.state.other_seconds += self.validation_seconds
        evaluation = Evaluation(self.state.position, self.state.update, scores, is_average=is_average)
        self.state.evaluations.append(evaluation)
        self.on_evaluation(evaluation)

    def _stop_if_asked(self) -> None:
        """If a signal arrived, save a checkpoint and raise Interrupted. Resuming repeats an unfinished update.

        If a checkpoint could not be written in the background, raise the reason.
        """
        received, has_failed = self.parallel.agree(self._signals.received, has_failed=self._saving.has_failed)
        if has_failed:
            self._saving.wait()
        self._saving.poll()
        if received is not None:
            self.save()
            raise Interrupted(received)
