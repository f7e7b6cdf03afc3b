"""The plan of a run: new, recorded, or changed by other settings."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from glassformer.tasks.training_run import make_plan, rehearse, score_samples
from glassformer.training.estimate import Estimate
from glassformer.training.run_folder import RunMismatchError
from glassformer.training.schedules import Plan
from glassformer.training.state import TrainState
from glassformer.training.train_config import TrainConfig

ESTIMATE = Estimate(parameters=1, flops=1, memory_bytes=1, seconds=10.0, device="cpu")


def a_run(recorded=None, **settings):
    """A run folder with this recorded plan, whose settings (name=[old, new]) were changed since."""
    changes = [{"settings": {f"train.{name}": values for name, values in settings.items()}}] if settings else []
    return SimpleNamespace(plan=lambda: recorded, changes=changes)


def test_a_new_run_plans_its_updates_and_a_warm_up_that_fits():
    config = TrainConfig(updates=100, warmup=80)
    assert make_plan(a_run(), config, ESTIMATE, TrainState()) == Plan(updates=100, warmup=25)
    assert make_plan(a_run(), config, ESTIMATE, TrainState(), warmup_is_given=True) == Plan(updates=100, warmup=80)


def test_a_resumed_run_keeps_its_plan_unless_the_training_changed():
    recorded, config = Plan(updates=100, warmup=25), TrainConfig(updates=100, warmup=80)
    assert make_plan(a_run(recorded), config, ESTIMATE, TrainState(update=40)) is recorded
    assert make_plan(a_run(recorded, dropout=[0.1, 0.2]), config, ESTIMATE, TrainState(update=40)) is recorded


def test_more_updates_start_a_new_plan_at_the_newest_checkpoint():
    recorded, config = Plan(updates=100, warmup=25), TrainConfig(updates=300, warmup=25, lr=0.1, schedule="constant")
    state = TrainState(position=40, update=40, seconds=7.0, other_seconds=1.0)
    plan = make_plan(a_run(recorded, updates=[100, 300]), config, ESTIMATE, state)
    assert (plan.updates, plan.warmup, plan.start, plan.start_seconds) == (300, 25, 40, 8.0)
    assert plan.start_lr == pytest.approx(0.1)
    with pytest.raises(ValueError, match="--updates 30: expected at least 40, which the run has made already"):
        make_plan(a_run(recorded, updates=[100, 30]), TrainConfig(updates=30), ESTIMATE, state)


def test_a_plan_fixes_the_updates_over_which_the_batch_grows():
    config = TrainConfig(updates=100, warmup=10, batch_ramp="0.25:0.3")
    recorded = make_plan(a_run(), config, ESTIMATE, TrainState())
    assert recorded.ramp_updates == 30
    longer = make_plan(a_run(recorded, updates=[100, 900]), replace(config, updates=900), ESTIMATE, TrainState())
    assert (longer.updates, longer.ramp_updates) == (900, 30)
    with pytest.raises(RunMismatchError, match=r"--batch-ramp none: the run was started with 0.25:0.3, which decides"):
        make_plan(a_run(recorded, batch_ramp=["0.25:0.3", ""]), TrainConfig(), ESTIMATE, TrainState())


def test_another_learning_rate_starts_from_the_old_one():
    recorded, config = Plan(updates=100, warmup=10), TrainConfig(updates=100, warmup=10, lr=0.2, schedule="constant")
    plan = make_plan(a_run(recorded, lr=[0.1, 0.2]), config, ESTIMATE, TrainState(position=40, update=40))
    assert (plan.updates, plan.start, plan.start_lr) == (100, 40, pytest.approx(0.1))


def test_samples_are_scored_in_evaluation_mode_and_the_longest_come_first():
    model, seen = torch.nn.Linear(1, 1).train(), []

    def score(examples):
        seen.append((list(examples), model.training))
        raise ValueError("scores of so few examples are not defined")

    score_samples(model, score, ["a", "longest", "long"])
    assert seen[0] == (["longest", "long"], False)
    assert model.training
    assert rehearse(model, score, ["a"] * 3) >= 0
