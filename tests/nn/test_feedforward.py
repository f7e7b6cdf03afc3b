"""Hooks on the feed-forward network see its hidden values unchanged."""

import pytest
import torch

from glassformer.nn.feedforward import FeedForward


@pytest.mark.parametrize("gated", [False, True])
def test_a_hook_sees_the_values_before_the_in_place_activation(gated):
    torch.manual_seed(0)
    network, x, seen = FeedForward(8, 16, gated=gated).eval(), torch.randn(2, 3, 8), []
    with torch.inference_mode():
        expected = network(x)
        watched = network.gate_proj if gated else network.up_proj
        watched.register_forward_hook(lambda module, given, found: seen.append(found))
        torch.testing.assert_close(network(x), expected)
        assert torch.equal(seen[0], torch.nn.functional.linear(x, watched.weight, watched.bias))
    assert (seen[0] < 0).any()
    torch.testing.assert_close(network(x), expected)
