"""The speed pilot on a clock of our own: a busy start does not count, and a short run measures for a short time."""

import pytest

from glassformer.models import ModelConfig
from glassformer.models.costs import training_flops
from glassformer.training import pilot
from glassformer.training.config import TrainConfig

MODEL = ModelConfig(vocab_size=20, d_model=8, n_heads=1, d_ff=8, n_decoder_layers=1, max_len=8)


class Clock:
    """Read before and after each step; a step takes as long as `seconds` says."""

    def __init__(self, seconds):
        self.seconds, self.now, self.readings = seconds, 0.0, 0

    def __call__(self):
        if self.readings % 2:
            self.now += self.seconds(self.now)
        self.readings += 1
        return self.now


def speed(monkeypatch, seconds, **train):
    """The seconds of a step that the pilot found, and how many steps it made."""
    clock = Clock(seconds)
    monkeypatch.setattr(pilot.time, "perf_counter", clock)
    found = pilot.measure_training_speed(MODEL, TrainConfig(max_tokens=16, device="cpu", **train), 8)
    flops = training_flops(MODEL, batch=2, source_length=0, target_length=8)
    return flops / found, clock.readings // 2


def test_a_machine_that_is_busy_at_first_is_measured_until_it_is_free(monkeypatch):
    step, _ = speed(monkeypatch, lambda now: 0.2 if now < 1.0 else 0.05)
    assert step == pytest.approx(0.05)


@pytest.mark.parametrize(("minutes", "steps"), [(0, 16), (60, 16), (1, 7), (0.01, 2)])
def test_a_short_run_is_measured_for_one_percent_of_its_time(monkeypatch, minutes, steps):
    assert speed(monkeypatch, lambda now: 0.1, minutes=minutes)[1] == pytest.approx(steps, abs=1)


def test_a_clock_that_stands_still_ends_the_pilot(monkeypatch):
    monkeypatch.setattr(pilot, "MAX_STEPS", 20)
    step, steps = speed(monkeypatch, lambda now: 1e-12)
    assert (step, steps) == (pytest.approx(1e-12, rel=0.1), 21)
