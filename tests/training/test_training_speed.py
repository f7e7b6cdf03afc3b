"""The speed pilot with a simulated clock: disturbed steps do not count, and short runs measure briefly."""

import pytest
import torch

from glassformer.models import ModelConfig
from glassformer.models.costs import training_flops
from glassformer.training import training_speed
from glassformer.training.train_config import TrainConfig

MODEL = ModelConfig(vocab_size=20, d_model=8, n_heads=1, d_ff=8, n_decoder_layers=1, max_len=8)


class Clock:
    """A simulated clock that is read before and after each step. `seconds` returns the duration of a step."""

    def __init__(self, seconds):
        self.seconds, self.now, self.readings = seconds, 0.0, 0

    def __call__(self):
        if self.readings % 2:
            self.now += self.seconds(self.now)
        self.readings += 1
        return self.now


def speed(monkeypatch, seconds, **train):
    """Return the seconds per step that the pilot measured, and the number of its steps."""
    clock = Clock(seconds)
    monkeypatch.setattr(training_speed.time, "perf_counter", clock)
    found = training_speed.measure_training_speed(MODEL, TrainConfig(max_tokens=16, device="cpu", **train), 8)
    flops = training_flops(MODEL, batch=2, source_length=0, target_length=8)
    return flops / found, clock.readings // 2


def test_the_pilot_ignores_steps_disturbed_by_other_programs(monkeypatch):
    step, _ = speed(monkeypatch, lambda now: 0.2 if now < 1.0 else 0.05)
    assert step == pytest.approx(0.05)


@pytest.mark.parametrize(("minutes", "steps"), [(0, 16), (60, 16), (1, 7), (0.01, 2)])
def test_a_short_run_is_measured_for_one_percent_of_its_time(monkeypatch, minutes, steps):
    assert speed(monkeypatch, lambda now: 0.1, minutes=minutes)[1] == pytest.approx(steps, abs=1)


def test_the_pilot_ends_even_if_the_clock_stands_still(monkeypatch):
    monkeypatch.setattr(training_speed, "MAX_STEPS", 20)
    step, steps = speed(monkeypatch, lambda now: 1e-12)
    assert (step, steps) == (pytest.approx(1e-12, rel=0.1), 21)


@pytest.fixture
def four_threads(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with training_speed.using_threads(4):
        yield


def threads_with(monkeypatch, seconds, **train):
    """Return the number of threads chosen if a step with n threads takes `seconds[n]`."""
    monkeypatch.setattr(training_speed, "_time_steps", lambda *_: (1, [seconds[torch.get_num_threads()]] * 2))
    return training_speed.fastest_threads(MODEL, TrainConfig(max_tokens=16, device="cpu", **train), 8)


def test_fewer_threads_are_chosen_only_where_they_are_much_faster(monkeypatch, four_threads):
    assert threads_with(monkeypatch, {4: 9.0, 3: 1.0, 2: 1.1, 1: 2.0}) == 3
    assert threads_with(monkeypatch, {4: 9.0, 3: 8.0, 2: 8.0, 1: 1.0}) == 1
    assert threads_with(monkeypatch, {4: 1.0, 3: 0.9, 2: 1.5, 1: 2.0}) == 0
    assert torch.get_num_threads() == 4


def test_a_given_number_of_threads_is_not_changed(monkeypatch, four_threads):
    seconds = {4: 9.0, 3: 1.0, 2: 1.1, 1: 2.0}
    assert threads_with(monkeypatch, seconds, threads=2) == 2
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert threads_with(monkeypatch, seconds) == 0


def test_a_pilot_uses_the_threads_of_its_config(monkeypatch, four_threads):
    seen = []
    monkeypatch.setattr(training_speed, "_time_steps", lambda *_: (seen.append(torch.get_num_threads()) or 1, [1.0]))
    for threads in (0, 3):
        training_speed.measure_training_speed(MODEL, TrainConfig(max_tokens=16, device="cpu", threads=threads), 8)
    assert seen == [4, 3]
    assert torch.get_num_threads() == 4
