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
        ("precision", "fp8"),
    ],
)
def test_errors_name_the_wrong_setting(field, value):
    with pytest.raises(ValueError, match=re.escape(f"{field}={value!r}")):
        TrainConfig(**{field: value})
