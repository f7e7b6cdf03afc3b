"""Run the training of any task: estimate its cost, plan the number of updates, open the log and run the trainer."""

import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from glassformer.base.plurals import counted
from glassformer.training.budget import Planner, TimeBudget, guess_costs, updates_that_fit
from glassformer.training.callbacks import Callbacks, attach
from glassformer.training.compile_choice import choose_compilation
from glassformer.training.cpu_kernels import choose_cpu_kernels
from glassformer.training.estimate import (
    Estimate,
    MeasuredCost,
    MemoryWatch,
    compare,
    estimate_run,
    in_words,
    rough_duration,
)
from glassformer.training.gradients import TrainBatch
from glassformer.training.journal import Journal, SilentJournal, prepare_tensorboard
from glassformer.training.parallel import Parallel
from glassformer.training.predicted_costs import predict_run
from glassformer.training.run_folder import RunFolder, RunMismatchError
from glassformer.training.schedules import Plan, fit_warmup, make_ramp, warmup_updates
from glassformer.training.state import TrainState, newest_state
from glassformer.training.train_config import TrainConfig
from glassformer.training.trainer import Batches, Trainer

Batch = TypeVar("Batch", bound=TrainBatch)
MIN_SAMPLE, SAMPLE_SHARE = 16, 16
"""`rehearse` times the scoring of one example in SAMPLE_SHARE, but of at least MIN_SAMPLE examples."""
FIRST_SAMPLE, SAMPLE_GROWTH, SAMPLE_SECONDS = 2, 4, 0.2
"""Samples that `score_samples` scores: the number of examples of the first sample, the factor from each to the next,
and the processor time in seconds below which a larger sample follows."""
FEW_UPDATES = 50
"""A run that `--minutes` limits to fewer updates says so: its model has learned little."""
TOLD_SHARE = 0.1
"""A correction of the plan is printed if it changes the number of updates by more than this fraction."""


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
    score: Callable[[Sequence[Any]], Any] = lambda examples: None,
    test: Sequence[Any] = (),
    began: float | None = None,
    warmup_is_given: bool = False,
    validation: str = "",
    callbacks: Callbacks | None = None,
    parallel: Parallel | None = None,
) -> TrainState:
    """Train `model` in place, from the run's newest checkpoint if there is one, and return the final counters.

    Args:
        run: The folder with the checkpoints and the plan (number of updates and learning-rate schedule).
        model: The model to train.
        config: The training options.
        batches: The training batches, numbered from 0 over the whole run.
        loss: Called with the model or a copy of it. Returns a function that computes the summed loss of a batch.
        evaluate: Returns the scores of a validation.
        flops: Returns the floating-point operations of training on a batch.
        notes: Lines to print before training.
        score: Computes the final scores of some examples. Here it is called on samples, to measure time and memory.
        test: The examples that `score` will be called with after training.
        began: Value of `time.perf_counter` when the command began, from which `minutes` counts; None is now.
        warmup_is_given: Whether the user chose the warm-up. It is then not shortened to fit a run of few updates,
            unless `minutes` decides the number of updates.
        validation: Decoding method and data of the validations, to print with their scores.
        callbacks: The user's callbacks, called after the log was written.
        parallel: The processes that share the run; None is one process.
    """
    began = time.perf_counter() if began is None else began
    trainer = Trainer(
        model=model,
        config=config,
        batches=batches,
        loss=loss(model),
        loss_of=loss,
        evaluate=evaluate,
        folder=run.checkpoints,
        parallel=parallel or Parallel(),
    )
    flops_per_update = config.accumulate * config.passes * flops(batches[0])
    notes = [*notes, *choose_compilation(trainer), *choose_cpu_kernels(trainer, flops_per_update)]
    # Load the libraries of scores and charts first, so that their memory does not count as memory of the run.
    prepare_tensorboard()
    if not trainer.parallel.is_active:  # otherwise the whole model exists during a validation only
        rehearse(model, score, test[:FIRST_SAMPLE])
    estimate = estimate_run(trainer, flops, lambda: score_samples(model, score, test))
    predicted = predict_run(trainer, flops)
    watch = MemoryWatch(trainer)
    state = TrainState() if run.record is None else newest_state(run.checkpoints)
    processes = trainer.parallel.processes
    with processes.together():
        plan = make_plan(run, config, estimate, state, began=began, warmup_is_given=warmup_is_given)
    plan = processes.broadcast(plan)
    run.begin(plan, state.position)
    update_seconds = estimate.seconds / config.updates
    ramp = plan.ramp(config.batch_ramp)
    share = ramp.full_updates(plan.end) / config.updates  # the estimate is of full batches
    estimate = replace(estimate, flops=round(estimate.flops * share), seconds=estimate.seconds * share)
    trainer.plan, trainer.config = plan, replace(config, updates=plan.end, warmup=plan.warmup)
    is_leader = processes.is_leader
    with (Journal if is_leader else SilentJournal)(run.path, trainer.config) as journal:
        trainer.warn, journal.validation = journal.say, validation
        attach(
            trainer,
            (callbacks or {}) if is_leader else {},
            on_update=journal.update,
            on_evaluation=journal.evaluation,
            on_stop=run.correct_plan,
        )
        for note in notes:
            journal.say(note)
        journal.say(f"{counted(plan.end, 'updates')}: {in_words(estimate)}")
        if predicted is not None:
            journal.say(predicted.in_words(estimate, share))
        if config.minutes and plan.end == config.max_updates:
            journal.say("more updates would not help (--max-updates): the command may end before --minutes are over")
        elif config.minutes and not state.update and time.perf_counter() - began > 60 * config.minutes:
            journal.say(
                f"the {rough_duration(60 * config.minutes)} of --minutes are over already: it took "
                f"{rough_duration(time.perf_counter() - began)} to start. The run makes as few updates as it can"
            )
        elif config.minutes:
            journal.say(f"the whole command takes about {rough_duration(60 * config.minutes)} (--minutes)")
        else:
            journal.say("validations and final scores come on top; --minutes sets the time of the whole command")
        _tell_plan(journal, plan, config, state)
        if ramp.n_parts > 1:
            tokens = config.max_tokens * config.accumulate
            journal.say(
                f"the batch grows from {tokens // ramp.n_parts:,} to {tokens:,} tokens over the first "
                f"{counted(ramp.updates, 'updates')} (--batch-ramp), with at least one example in each"
            )
        if config.minutes:
            spent = state.seconds + state.other_seconds - plan.start_seconds
            budget = TimeBudget(seconds=60 * config.minutes, began=began, earlier=spent)

            def record(plan: Plan) -> None:
                run.correct_plan(plan)
                journal.correction(plan, tell_from=TOLD_SHARE)

            planner = Planner(
                trainer,
                plan,
                budget,
                update_seconds=update_seconds,
                record=record,
                # A sharded model is whole during a validation only, which takes about as long.
                rehearse=lambda: (
                    rehearse(model, score, test) / processes.size
                    if trainer.model is model
                    else trainer.validation_seconds or 0.0
                ),
            )
            trainer.correct = processes.by_leader(planner.correct)
            trainer.wants_validation = processes.by_leader(planner.wants_validation)
            trainer.is_correction_due = planner.is_correction_due
        starting = time.perf_counter() - began
        trainer.run()
        truth = MeasuredCost(
            flops=round(ramp.full_updates(trainer.state.position) / ramp.full_updates(plan.end) * estimate.flops),
            peak_bytes=watch.peak_bytes(),
            seconds=trainer.state.seconds,
        )
        journal.say(compare(estimate, truth))
        if config.minutes and not state.update and trainer.state.update >= planner.plan.end:
            _tell_few_updates(journal, config, trainer.state.update, starting)
    return trainer.state


def _tell_few_updates(journal: Journal, config: TrainConfig, made: int, starting: float) -> None:
    """Print a line if few updates fitted into the time. `starting` is how many seconds passed before the first."""
    if made < min(FEW_UPDATES, config.max_updates or FEW_UPDATES):
        journal.say(
            f"only {counted(made, 'updates')} fitted into --minutes {config.minutes:g}, so the model has learned "
            f"little: {rough_duration(starting)} passed before the first update. Give it more minutes, or updates of "
            "fewer tokens (--max-tokens)"
        )


def _tell_plan(journal: Journal, plan: Plan, config: TrainConfig, state: TrainState) -> None:
    """Print a line if the warm-up was shortened or is never completed, if the run resumes, or if it is complete."""
    if 1 <= config.warmup > plan.warmup:
        journal.say(
            f"the learning rate rises over {plan.warmup:,} of them, not {config.warmup:,}: the run has too few updates"
        )
    elif plan.warmup >= plan.end:
        journal.say(
            f"the learning rate never reaches its peak: it rises over {counted(plan.warmup, 'updates')} (--warmup)"
        )
    if state.update:
        journal.say(f"resuming at update {state.update:,}")
    if state.update >= plan.end:
        journal.say("the run is complete: --continue with more --updates or --minutes extends it")


def rehearse(model: nn.Module, score: Callable[[Sequence[Any]], Any], test: Sequence[Any]) -> float:
    """Return the estimated seconds of the final scoring, from the time that a sample of the `test` examples takes."""
    size = min(len(test), max(MIN_SAMPLE, len(test) // SAMPLE_SHARE))
    if not size:
        return 0.0
    sample = [test[place * len(test) // size] for place in range(size)]  # spread over all examples
    began = time.perf_counter()
    _score_quietly(model, score, sample)
    return (time.perf_counter() - began) * len(test) / size


def score_samples(model: nn.Module, score: Callable[[Sequence[Any]], Any], test: Sequence[Any]) -> None:
    """Score growing samples of the longest examples until one takes SAMPLE_SECONDS, for the memory estimate.

    The caller measures the memory. A validation sorts its examples by length, so the longest are in its largest batch.
    """
    longest = sorted(test, key=lambda example: -len(repr(example)))
    size, taken = 0, 0.0
    while size < len(longest) and taken < SAMPLE_SECONDS:
        size = size * SAMPLE_GROWTH or FIRST_SAMPLE
        began = time.process_time()  # processor time, so that other programs do not change the estimate
        _score_quietly(model, score, longest[:size])
        taken = time.process_time() - began


def _score_quietly(model: nn.Module, score: Callable[[Sequence[Any]], Any], sample: Sequence[Any]) -> None:
    """Score some examples to measure time or memory. ValueErrors are ignored: few examples may have no valid score."""
    was_training = model.training
    model.eval()
    with torch.inference_mode(), warnings.catch_warnings(), suppress(ValueError):
        warnings.simplefilter("ignore")
        score(sample)
    model.train(was_training)


def make_plan(
    run: RunFolder,
    config: TrainConfig,
    estimate: Estimate,
    state: TrainState,
    *,
    began: float | None = None,
    warmup_is_given: bool = False,
) -> Plan:
    """Return the plan of a run, its number of updates and learning-rate schedule.

    A resumed run keeps its recorded plan, unless its updates, minutes, warm-up, learning rate or schedule were changed.
    A changed plan starts at the newest checkpoint, whose counters are `state`. With `minutes`, the number of updates is
    what fits into the rest of that time, counted from `began`, at the estimated speed.
    """
    recorded = run.plan()
    if recorded is None:
        updates = _fitting(config, estimate, TrainState(), began) or config.updates
        ramp = make_ramp(config.batch_ramp, updates)
        return Plan(updates=updates, warmup=_warmup(config, updates, warmup_is_given), ramp_updates=ramp.updates)
    changed = {
        name.removeprefix("train."): values for change in run.changes for name, values in change["settings"].items()
    }
    if "batch_ramp" in changed:
        raise RunMismatchError(
            f"--batch-ramp {config.batch_ramp or 'none'}: the run was started with "
            f"{changed['batch_ramp'][0] or 'none'}, which decides the order of its "
            "examples. Use --restart to discard the run, or another --out"
        )
    if not changed.keys() & {"updates", "minutes", "warmup", "lr", "schedule"}:
        return recorded
    updates, warmup, start_seconds = recorded.end, recorded.warmup, recorded.start_seconds
    if changed.keys() & {"updates", "minutes"}:
        start_seconds = state.seconds + state.other_seconds
        fitting = _fitting(config, estimate, state, began, recorded.ramp_updates)
        updates = state.update + fitting if config.minutes else config.updates
        if updates < state.update:
            raise ValueError(f"--updates {updates}: expected at least {state.update}, which the run has made already")
    if changed.keys() & {"warmup", "minutes"} or config.warmup < 1:
        warmup = _warmup(config, updates, warmup_is_given)
    schedule, peak = (changed.get(name, [getattr(config, name)])[0] for name in ("schedule", "lr"))
    start_lr = recorded.lr(schedule, peak, state.update) if state.update else 0.0
    return Plan(
        updates=updates,
        warmup=warmup,
        start=state.update,
        start_lr=start_lr,
        start_seconds=start_seconds,
        ramp_updates=recorded.ramp_updates,
    )


def _fitting(
    config: TrainConfig, estimate: Estimate, state: TrainState, began: float | None, ramp_updates: int | None = None
) -> int:
    """Return the number of further updates that fit into the rest of `config.minutes`; 0 if `minutes` is 0.

    `ramp_updates` is the number of updates over which the batch grows, if a plan has fixed it already.
    """
    if not config.minutes:
        return 0
    budget = TimeBudget(seconds=60 * config.minutes, began=time.perf_counter() if began is None else began)
    costs = guess_costs(budget, estimate.seconds / config.updates)
    return updates_that_fit(budget.left(), costs, config, state.position, ramp_updates)


def _warmup(config: TrainConfig, updates: int, is_given: bool) -> int:
    """Return the number of warm-up updates, limited by `fit_warmup` to a quarter of `updates`.

    The limit does not apply if the user gave the warm-up (`is_given`) and did not give `minutes`.
    """
    fitted = warmup_updates if is_given and not config.minutes else fit_warmup
    return fitted(config.warmup, updates)
