"""Plans: corrections change the learning rate without a jump and round-trip through JSON."""

import itertools
import json
import math
from dataclasses import asdict

import pytest

from glassformer.training.schedules import (
    SCHEDULES,
    BatchRamp,
    Correction,
    Plan,
    fit_warmup,
    lr_factor,
    make_ramp,
    read_ramp,
    warmup_updates,
)
from glassformer.training.train_config import TrainConfig


def rates(plan, schedule):
    return [plan.lr(schedule, 1.0, update) for update in range(plan.start + 1, plan.end + 1)]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("updates", [60, 300, 1000])
@pytest.mark.parametrize("at", [10, 50])
def test_a_correction_causes_no_jump_of_the_learning_rate(schedule, updates, at):
    plain = Plan(updates=200, warmup=20)
    plan = plain.corrected(at, updates)
    found = rates(plan, schedule)
    assert found[:at] == rates(plain, schedule)[:at], "what was done is not changed"
    steepest = max(abs(b - a) for a, b in itertools.pairwise(rates(plain, schedule)))
    stretch = (200 - at) / (updates - at)
    assert max(abs(b - a) for a, b in itertools.pairwise(found)) <= steepest * max(stretch, 1) + 1e-9
    assert found[-1] == pytest.approx(rates(plain, schedule)[-1])
    assert len(found) == updates


def test_a_correction_in_the_warmup_stretches_the_warmup():
    plan = Plan(updates=100, warmup=20).corrected(10, 190)  # the 90 remaining updates become 180
    found = rates(plan, "linear")
    assert max(found) == found[29] == pytest.approx(1.0)
    assert found[19] == pytest.approx(0.75)


def test_several_corrections_are_applied_in_order():
    plan = Plan(updates=100, warmup=0).corrected(50, 150).corrected(100, 125)
    found = rates(plan, "linear")
    assert plan.end == len(found) == 125
    assert found[49] == pytest.approx(0.5)
    assert found[99] == pytest.approx(0.25)
    assert found[111] == pytest.approx(0.13)
    assert found[-1] == 0.0


def test_a_plan_without_corrections_equals_the_schedule():
    """The numbers are bit-identical: corrections must not change a run of fixed length."""
    plan = Plan(updates=137, warmup=11)
    for schedule in SCHEDULES:
        assert rates(plan, schedule) == [lr_factor(schedule, u, warmup=11, updates=137) for u in range(1, 138)]


def test_a_continued_plan_is_corrected_from_its_start_on():
    plan = Plan(updates=200, warmup=20, start=100, start_lr=0.1).corrected(120, 160)
    found = rates(plan, "linear")
    assert len(found) == 60
    assert found[-1] == 0.0
    assert max(abs(b - a) for a, b in itertools.pairwise(found)) < 0.1


def test_an_ended_plan_keeps_the_learning_rates_before_its_end():
    plan = Plan(updates=100, warmup=20).corrected(10, 90).corrected(50, 120)
    ended = plan.ended(40)
    assert ended.end == 40
    assert rates(ended, "linear") == rates(plan, "linear")[:40]
    assert Plan(**json.loads(json.dumps(asdict(ended)))) == ended
    with pytest.raises(TypeError, match="expected an update from 40 to 39"):
        ended.corrected(40, 60)


def test_a_plan_round_trips_through_json():
    plan = Plan(updates=100, warmup=5, start_seconds=1.5).corrected(10, 90).corrected(30, 95)
    assert Plan(**json.loads(json.dumps(asdict(plan)))) == plan
    assert plan.corrections == (Correction(10, 90), Correction(30, 95))
    assert Plan(updates=3, warmup=1, start=0, start_lr=0.0).end == 3, "a record without corrections"


@pytest.mark.parametrize(
    "corrections",
    [[[10]], [["a", 3]], [[1.5, 30]], [[10, 10], [10, 10]], [[10, 9]], [[20, 90], [10, 95]], [[100, 200]], [3], "ab"],
)
def test_invalid_corrections_are_refused(corrections):
    with pytest.raises(TypeError, match="correction"):
        Plan(updates=100, warmup=5, corrections=corrections)


def test_after_the_warmup_a_correction_does_not_raise_the_learning_rate():
    plan = Plan(updates=100, warmup=6).corrected(10, 300)
    found = rates(plan, "linear")
    assert all(a > b for a, b in itertools.pairwise(found[6:]))


@pytest.mark.parametrize(
    ("warmup", "updates", "count"), [(0.06, 2000, 120), (0.06, 3, 0), (0, 50, 0), (1, 50, 1), (100, 50, 100)]
)
def test_a_warmup_below_1_is_a_fraction_of_the_updates(warmup, updates, count):
    assert warmup_updates(warmup, updates) == count


@pytest.mark.parametrize(
    ("warmup", "updates", "fitted"),
    [(1000, 83, 20), (100, 400, 100), (100, 399, 99), (5, 1, 0), (0.5, 100, 50), (0.06, 100, 6)],
)
def test_fit_warmup_limits_the_warmup_to_a_quarter(warmup, updates, fitted):
    assert fit_warmup(warmup, updates) == fitted


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules_rise_and_fall(schedule):
    shares = [lr_factor(schedule, u, warmup=10, updates=100) for u in range(1, 101)]
    assert shares[:10] == pytest.approx([(u + 1) / 10 for u in range(10)])
    assert all(a >= b for a, b in itertools.pairwise(shares[10:]))
    last = {"inverse_sqrt": math.sqrt(0.1), "cosine": 0.0, "linear": 0.0, "constant": 1.0}[schedule]
    assert shares[-1] == pytest.approx(last, abs=1e-12)


def test_a_continued_plan_approaches_a_higher_rate_and_takes_a_lower_one_at_once():
    assert Plan(updates=100, warmup=20).lr("linear", 1.0, 100) == 0.0
    longer = Plan(updates=200, warmup=20, start=100, start_lr=0.0)
    rates = [longer.lr("linear", 1.0, update) for update in range(101, 201)]
    assert rates[0] < 0.1
    assert all(b - a < 0.1 for a, b in itertools.pairwise(rates))
    assert rates[9] == lr_factor("linear", 110, warmup=20, updates=200)
    assert rates[-1] == 0.0
    lower = Plan(updates=200, warmup=20, start=100, start_lr=0.5)
    assert lower.lr("linear", 0.1, 101) == pytest.approx(0.1 * lr_factor("linear", 101, warmup=20, updates=200))


def test_the_batch_grows_from_its_first_part_to_the_whole():
    ramp = make_ramp("0.25:0.3", 1000)
    assert ramp == BatchRamp(4, 300)
    parts = [ramp.parts_at(position) for position in range(400)]
    assert parts == sorted(parts, reverse=True)
    assert (parts[0], parts[100], parts[299], parts[300]) == (4, 2, 2, 1)
    assert parts.index(3) == 34  # a line from 1/4 to 1 reaches 1/3 after 33.3 of 300 updates


@pytest.mark.parametrize("n_parts", [1, 2, 5, 64])
def test_the_cost_of_growing_batches_is_the_sum_of_their_sizes(n_parts):
    ramp = BatchRamp(n_parts, 200)
    total = sum(1 / ramp.parts_at(position) for position in range(500))
    assert ramp.full_updates(500) == pytest.approx(total, rel=0.01)
    assert ramp.full_updates(0) == 0
    assert ramp.full_updates(300) - ramp.full_updates(250) == pytest.approx(50)


def test_without_a_ramp_every_update_is_full():
    ramp = make_ramp("", 1000)
    assert ramp.parts_at(0) == 1
    assert ramp.full_updates(17) == 17


@pytest.mark.parametrize("text", ["0.25", "0.25:", "0.6:0.3", "0:0.3", "0.25:0", "0.25:1.1", "nan:0.3", "a:b", "1:2:3"])
def test_a_wrong_ramp_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match=r"batch_ramp='.*': expected START:SHARE such as 0.25:0.3"):
        read_ramp(text)


def test_an_unknown_schedule_is_an_error():
    with pytest.raises(ValueError, match="schedule='cosin': expected one of inverse_sqrt, cosine"):
        lr_factor("cosin", 5, warmup=1, updates=10)


def test_the_config_takes_exactly_the_schedules_of_the_table():
    assert [TrainConfig(schedule=name).schedule for name in SCHEDULES] == [*SCHEDULES]
    with pytest.raises(ValueError, match=f"schedule='noam': expected one of {', '.join(SCHEDULES)}"):
        TrainConfig(schedule="noam")
