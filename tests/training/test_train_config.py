"""Training settings: each wrong value is refused with the name of its field."""

import math
import re

import pytest

from glassformer.training.train_config import TrainConfig


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("updates", 0),
        ("label_smoothing", 1.0),
        ("warmup", -1),
        ("warmup", 1.5),
        ("average_last", 9),
        ("lr", math.inf),
        ("lr", math.nan),
        ("lr", 0.0),
        ("minutes", math.inf),
        ("beta2", 1.0),
        ("eps", math.nan),
        ("weight_decay", -1.0),
        ("clip", math.nan),
        ("schedule", "cosin"),
        ("optimizer", "sgd"),
        ("precision", "fp4"),
    ],
)
def test_errors_name_the_wrong_setting(field, value):
    with pytest.raises(ValueError, match=re.escape(f"{field}={value!r}")):
        TrainConfig(**{field: value})


@pytest.mark.parametrize(("given", "kept"), [(0, 0), (0.06, 0.06), (1.0, 1), (2000.0, 2000)])
def test_a_warmup_of_1_or_more_is_a_whole_number(given, kept):
    warmup = TrainConfig(warmup=given).warmup
    assert (warmup, type(warmup)) == (kept, type(kept))


def test_no_more_checkpoints_are_averaged_than_kept():
    assert TrainConfig(keep_last=5, average_last=5).average_last == 5
    with pytest.raises(ValueError, match="average_last=6: expected at most keep_last=5"):
        TrainConfig(keep_last=5, average_last=6)
