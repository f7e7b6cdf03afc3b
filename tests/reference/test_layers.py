"""Residual connections and stacks of the reference."""

from dataclasses import replace

import numpy as np
import pytest

from glassformer import reference
from glassformer.reference.layers import Stack, Sublayer
from glassformer.reference.parameters import Parameters

CONFIG = reference.Config(vocab_size=5, n_encoder_layers=2, d_model=8, n_heads=2, d_ff=6)


def normalize(x):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + CONFIG.norm_eps)


@pytest.mark.parametrize("placement", ["pre", "post"])
def test_the_norm_is_before_the_sublayer_or_after_the_sum(placement):
    x = np.random.default_rng(0).standard_normal((2, 3, 8))
    params = Parameters({"norm.weight": np.ones(8), "norm.bias": np.zeros(8)})
    found = Sublayer(params, replace(CONFIG, norm_placement=placement)).forward(x, lambda y: 2 * y)
    np.testing.assert_allclose(found, x + 2 * normalize(x) if placement == "pre" else normalize(3 * x))


def stack_of(config):
    state = reference.initial_parameters(config, np.random.default_rng(0))
    params = Parameters(state)
    return Stack(params.at("encoder"), config, config.n_encoder_layers, bidirectional=True, cross=False), params


def run(stack, x):
    positions = np.arange(x.shape[1])[None].repeat(len(x), 0)
    return stack.forward(x, positions, np.ones((len(x), 1, x.shape[1], x.shape[1]), dtype=bool))


def test_shared_layers_are_the_first_layer_again_and_collect_all_gradients():
    x = np.random.default_rng(1).standard_normal((1, 3, 8))
    shared, params = stack_of(replace(CONFIG, share_layers=True))
    one, _ = stack_of(replace(CONFIG, n_encoder_layers=1))
    np.testing.assert_allclose(run(shared, x), run(one, run(one, x)))
    shared.backward(np.ones_like(x))
    assert all(name.startswith("encoder.layers.0.") for name in params.grads)


def test_a_stack_without_positions_is_equivariant_to_the_order_of_tokens():
    x = np.random.default_rng(1).standard_normal((1, 4, 8))
    order = [2, 0, 3, 1]
    stack, _ = stack_of(replace(CONFIG, positions="none"))
    np.testing.assert_allclose(run(stack, x[:, order]), run(stack, x)[:, order])
    with_alibi, _ = stack_of(replace(CONFIG, positions="alibi"))
    assert not np.allclose(run(with_alibi, x[:, order]), run(with_alibi, x)[:, order])
