"""The expected speed of a model: formulas and text. No test depends on the speed of the machine."""

import pytest
import torch

from glassformer.models import preset
from glassformer.models.costs import forward_flops
from glassformer.runtime.expected_speed import (
    ExpectedSpeed,
    MachineRates,
    describe_speed,
    expected_speed,
    measure_rates,
)

RATES = MachineRates(bytes_read=1e9, flops=1e10)


def test_writing_is_bound_by_memory_and_reading_by_arithmetic():
    config = preset("tiny-llama")
    found = expected_speed(config, RATES, 4.0)
    per_token = forward_flops(config, batch=1, target_length=2) - forward_flops(config, batch=1, target_length=1)
    assert found.writing == pytest.approx(1e9 / (per_token * 2))
    assert found.reading == pytest.approx(32 * 1e10 / forward_flops(config, batch=1, target_length=32))
    assert expected_speed(config, RATES, 1.0).writing == pytest.approx(4 * found.writing)


def test_an_encoder_only_reads():
    assert expected_speed(preset("tiny-bert-base"), RATES, 4.0).writing is None
    assert expected_speed(preset("tiny-t5-small"), RATES, 4.0).writing > 0


def test_the_text_has_two_digits_that_count():
    assert describe_speed(ExpectedSpeed(1234.5, None)) == "reads up to 1,200 tokens/s"
    whole = "reads up to 0.25 tokens/s, writes up to 86 tokens/s for one text"
    assert describe_speed(ExpectedSpeed(0.25, 85.7)) == whole


def test_the_rates_of_this_machine_are_positive():
    assert min(measure_rates(torch.device("cpu"), torch.float32)) > 0
