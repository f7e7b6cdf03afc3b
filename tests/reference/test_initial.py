"""Names, shapes and initial values of parameters."""

import numpy as np
import pytest

from glassformer import reference
from glassformer.models import PRESETS, preset
from oracle import random_model


@pytest.mark.parametrize("name", [name for name in PRESETS if name.startswith("tiny-")])
def test_names_and_shapes_are_those_of_the_torch_model(name):
    config = preset(name)
    torch_shapes = {n: tuple(p.shape) for n, p in random_model(config).named_parameters()}
    assert reference.parameter_shapes(reference.Config.from_dict(config.to_dict())) == torch_shapes


def test_matrices_start_xavier_uniform_norms_with_one_and_biases_with_zero():
    config = reference.Config(vocab_size=40, n_encoder_layers=1, d_model=64, n_heads=4, d_ff=96)
    values = reference.initial_parameters(config, np.random.default_rng(0))
    assert {name: value.shape for name, value in values.items()} == reference.parameter_shapes(config)
    for name, value in values.items():
        if value.ndim == 2:
            bound = (6 / sum(value.shape)) ** 0.5
            assert 0.95 * bound < np.abs(value).max() <= bound
            assert abs(value.mean()) < 0.1 * bound
        else:
            assert (value == (0 if name.endswith("bias") else 1)).all()
