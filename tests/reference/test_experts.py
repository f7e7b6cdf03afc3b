"""The reference's experts: their gradients are those of finite differences."""

import numpy as np
import pytest

from glassformer.reference.config import Config
from glassformer.reference.experts import ExpertFeedForward
from glassformer.reference.initial import parameter_shapes
from glassformer.reference.parameters import Parameters


@pytest.mark.parametrize("normalize", [True, False])
def test_gradients_are_those_of_finite_differences(normalize):
    config = Config(
        vocab_size=1,
        n_decoder_layers=1,
        d_model=4,
        n_heads=1,
        d_ff=3,
        activation="gelu",
        n_experts=3,
        shared_expert_d_ff=2,
        normalize_expert_weights=normalize,
    )
    draw, prefix = np.random.default_rng(0), "decoder.layers.0.ffn."
    shapes = {name.removeprefix(prefix): shape for name, shape in parameter_shapes(config).items() if prefix in name}
    state = {name: draw.normal(size=shape) for name, shape in shapes.items()}
    x, direction = draw.normal(size=(2, 3, 4)), draw.normal(size=(2, 3, 4))

    def value(x, state):
        return (ExpertFeedForward(Parameters(state), config).forward(x) * direction).sum()

    params = Parameters(state)
    network = ExpertFeedForward(params, config)
    network.forward(x)
    dx = network.backward(direction)
    step = 1e-6
    moved = x.copy()
    moved[1, 2, 0] += step
    np.testing.assert_allclose((value(moved, state) - value(x, state)) / step, dx[1, 2, 0], atol=1e-4)
    for name in ("router.weight", "shared_gate.weight", "experts.1.up_proj.weight"):
        changed = {**state, name: state[name].copy()}
        changed[name][0, 1] += step
        found = (value(x, changed) - value(x, state)) / step
        np.testing.assert_allclose(found, params.grads[name][0, 1], atol=1e-4)
