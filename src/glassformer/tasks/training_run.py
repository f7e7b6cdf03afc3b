"""What every task's training has in common: the estimate, the plan, the journal, the trainer."""

import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from glassformer.nn.compile_cache import separate_compile_cache
from glassformer.training.budget import Planner, TimeBudget, guess_costs, updates_that_fit
from glassformer.training.callbacks import Callbacks, attach
from glassformer.training.estimate import Estimate, MemoryWatch, Truth, compare, estimate_run, in_words, rough_duration
from glassformer.training.gradients import TrainBatch
from glassformer.training.journal import Journal, prepare_tensorboard
from glassformer.training.run_folder import RunFolder
from glassformer.training.schedules import Plan, fit_warmup, warmup_updates
from glassformer.training.state import TrainState, newest_state
from glassformer.training.train_config import TrainConfig
from glassformer.training.trainer import Batches, Trainer

Batch = TypeVar("Batch", bound=TrainBatch)
MIN_SAMPLE, SAMPLE_SHARE = 16, 16
"""A rehearsal of the final scores takes one example in SAMPLE_SHARE, but at least so many."""
FIRST_SAMPLE, SAMPLE_GROWTH, SAMPLE_SECONDS = 2, 4, 0.2
"""The samples whose memory is measured before the run: the examples of the first one, how many times as many the next
one has, and how much processor time a sample may take to be followed by a larger one."""
TOLD_SHARE = 0.1
"""A correction of the plan is told if it changes the number of updates by more than this."""


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
) -> TrainState:
    """Train `model` in place, from the run's newest checkpoint, and return the state at the end.

    Args:
        run: Where checkpoints and the plan are.
        model: What learns.
        config: How it learns.
        batches: Its batches, by number.
        loss: Makes the loss of a model, compiled or not.
        evaluate: The scores of a validation.
        flops: Counts the operations of training on a batch.
        notes: Printed first.
        score: Makes the final scores of some examples, after this function. With `minutes` a sample of them is timed.
        test: The examples that the final scores are of.
        began: When the command began, by `time.perf_counter`; None is now. `minutes` counts from there.
        warmup_is_given: The user asked for this warm-up: a run of few updates does not shorten it, unless `minutes`
            chose their number.
        validation: Says on what and how each validation scores.
        callbacks: Called after the journal.
    """
    began = time.perf_counter() if began is None else began
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
    # What the libraries of scores and charts take is no memory of the run: they are loaded before it is watched.
    prepare_tensorboard()
    rehearse(model, score, test[:FIRST_SAMPLE])
    estimate = estimate_run(trainer, flops, lambda: score_samples(model, score, test))
    watch = MemoryWatch(trainer)
    state = TrainState() if run.record is None else newest_state(run.checkpoints)
    plan = make_plan(run, config, estimate, state, began=began, warmup_is_given=warmup_is_given)
    run.begin(plan, state.position)
    update_seconds = estimate.seconds / config.updates
    share = plan.end / config.updates
    estimate = replace(estimate, flops=round(estimate.flops * share), seconds=estimate.seconds * share)
    trainer.plan, trainer.config = plan, replace(config, updates=plan.end, warmup=plan.warmup)
    with Journal(run.path, trainer.config) as journal:
        trainer.warn, journal.validation = journal.say, validation
        attach(trainer, callbacks or {}, on_update=journal.update, on_evaluation=journal.evaluation)
        for note in notes:
            journal.say(note)
        journal.say(f"{plan.end:,} update{'s' * (plan.end != 1)}: {in_words(estimate)}")
        if config.minutes:
            journal.say(f"the whole command takes about {rough_duration(60 * config.minutes)} (--minutes)")
        else:
            journal.say("validations and final scores come on top; --minutes sets the time of the whole command")
        _tell_plan(journal, plan, config, state)
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
                rehearse=lambda: rehearse(model, score, test),
            )
            trainer.correct, trainer.wants_validation = planner.correct, planner.wants_validation
        trainer.run()
        truth = Truth(
            flops=round(trainer.state.position / plan.end * estimate.flops),
            peak_bytes=watch.peak_bytes(),
            seconds=trainer.state.seconds,
        )
        journal.say(compare(estimate, truth))
    return trainer.state


def _tell_plan(journal: Journal, plan: Plan, config: TrainConfig, state: TrainState) -> None:
    """What is special about this plan, if anything."""
    if 1 <= config.warmup > plan.warmup:
        journal.say(f"the learning rate rises over {plan.warmup:,} of them, not {config.warmup:,}: there are too few")
    elif plan.warmup >= plan.end:
        journal.say(f"the learning rate never reaches its peak: it rises over {plan.warmup:,} updates (--warmup)")
    if state.update:
        journal.say(f"resuming at update {state.update:,}")
    if state.update >= plan.end:
        journal.say("the run is complete: --continue with more --updates or --minutes extends it")


def rehearse(model: nn.Module, score: Callable[[Sequence[Any]], Any], test: Sequence[Any]) -> float:
    """The seconds that the final scores would take now: those of a sample, scaled to all examples."""
    size = min(len(test), max(MIN_SAMPLE, len(test) // SAMPLE_SHARE))
    if not size:
        return 0.0
    sample = [test[place * len(test) // size] for place in range(size)]  # from all over them
    began = time.perf_counter()
    _score_quietly(model, score, sample)
    return (time.perf_counter() - began) * len(test) / size


def score_samples(model: nn.Module, score: Callable[[Sequence[Any]], Any], test: Sequence[Any]) -> None:
    """Score the longest examples, more and more of them as long as that takes a moment, so that their memory is seen.

    A validation sorts its examples by length: the longest ones are its largest batch.
    """
    longest = sorted(test, key=lambda example: -len(repr(example)))
    size, taken = 0, 0.0
    while size < len(longest) and taken < SAMPLE_SECONDS:
        size = size * SAMPLE_GROWTH or FIRST_SAMPLE
        began = time.process_time()  # not the time of day: other programs must not change the estimate
        _score_quietly(model, score, longest[:size])
        taken = time.process_time() - began


def _score_quietly(model: nn.Module, score: Callable[[Sequence[Any]], Any], sample: Sequence[Any]) -> None:
    """Score some examples for the time or the memory alone: the scores may be undefined for so few."""
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
    """The plan of a run: as recorded, or new where the run is fresh or its training settings were changed.

    A changed plan starts at the newest checkpoint. With `minutes`, the number of updates comes from the estimate and
    from the time since the command `began`.
    """
    recorded = run.plan()
    if recorded is None:
        updates = _fitting(config, estimate, TrainState(), began) or config.updates
        return Plan(updates=updates, warmup=_warmup(config, updates, warmup_is_given))
    changed = {
        name.removeprefix("train."): values for change in run.changes for name, values in change["settings"].items()
    }
    if not changed.keys() & {"updates", "minutes", "warmup", "lr", "schedule"}:
        return recorded
    updates, warmup, start_seconds = recorded.end, recorded.warmup, recorded.start_seconds
    if changed.keys() & {"updates", "minutes"}:
        start_seconds = state.seconds + state.other_seconds
        updates = state.update + _fitting(config, estimate, state, began) if config.minutes else config.updates
        if updates < state.update:
            raise ValueError(f"--updates {updates}: expected at least {state.update}, which the run has made already")
    if changed.keys() & {"warmup", "minutes"} or config.warmup < 1:
        warmup = _warmup(config, updates, warmup_is_given)
    schedule, peak = (changed.get(name, [getattr(config, name)])[0] for name in ("schedule", "lr"))
    start_lr = recorded.lr(schedule, peak, state.update) if state.update else 0.0
    return Plan(updates=updates, warmup=warmup, start=state.update, start_lr=start_lr, start_seconds=start_seconds)


def _fitting(config: TrainConfig, estimate: Estimate, state: TrainState, began: float | None) -> int:
    """The updates that fit into what is left of `minutes`; 0 without them."""
    if not config.minutes:
        return 0
    budget = TimeBudget(seconds=60 * config.minutes, began=time.perf_counter() if began is None else began)
    costs = guess_costs(budget, estimate.seconds / config.updates)
    return updates_that_fit(budget.left(), costs, config, state.position)


def _warmup(config: TrainConfig, updates: int, is_given: bool) -> int:
    """A number of updates that `minutes` chose, or a warm-up that nobody asked for, makes it fit the plan."""
    fitted = warmup_updates if is_given and not config.minutes else fit_warmup
    return fitted(config.warmup, updates)
