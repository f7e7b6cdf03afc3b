"""Layers of one kind share their mask, bias and rotation; global layers ignore the window."""

from dataclasses import replace

import pytest
import torch

from glassformer.models import ModelConfig
from glassformer.nn import Mask, Rotary
from glassformer.nn.layer_inputs import LayerInputs, LayerKinds, SharedInputs
from oracle import random_model

CONFIG = ModelConfig(
    vocab_size=13, n_decoder_layers=3, d_model=8, n_heads=2, d_ff=8, head="language_model", positions="rotary"
)
POSITIONS = torch.arange(6)[None]


def inputs(**options):
    mask = Mask(causal=True, window=2, query_positions=POSITIONS, key_positions=POSITIONS)
    shared = SharedInputs(
        positions=POSITIONS,
        key_positions=POSITIONS,
        mask=mask,
        n_keys=6,
        like=torch.empty(0),
        dtype=torch.float32,
        kernels=None,
        is_additive=True,
    )
    kinds = LayerKinds.of(global_layers=(1,), unrotated_layers=(2,))
    return LayerInputs(shared, kinds, score_bias=None, rotary=Rotary(4), local_rotary=Rotary(4, theta=9.0), **options)


def test_layers_of_one_kind_share_their_inputs():
    found = inputs()
    first, second, third = (found.of(index, index) for index in range(3))
    assert first["mask"] is third["mask"]
    assert first["mask"].window == 2
    assert second["mask"].window is None
    assert third["rotation"] is None
    assert not torch.equal(first["rotation"].cos, second["rotation"].cos)
    assert found.of(0, 0)["rotation"] is first["rotation"]


@pytest.mark.parametrize("index", range(3))
def test_a_global_layer_sees_tokens_outside_the_window(index):
    """The first token changes the last output only through a global layer, for the windows are too short."""
    local = random_model(replace(CONFIG, sliding_window=2))
    mixed = random_model(replace(CONFIG, sliding_window=2, global_layers=(index,)))
    one, two = torch.tensor([[1, 5, 6, 7, 8, 9, 3, 4]]), torch.tensor([[2, 5, 6, 7, 8, 9, 3, 4]])
    assert torch.equal(local(one)[0, -1], local(two)[0, -1])
    assert not torch.equal(mixed(one)[0, -1], mixed(two)[0, -1])


def test_a_cache_gives_the_same_outputs():
    config = replace(CONFIG, sliding_window=2, global_layers=(1,), local_rope_theta=9.0, unrotated_layers=(2,))
    model, tokens = random_model(config), torch.randint(13, (2, 9))
    cache = model.new_cache(2, 9)
    parts = [model(part, cache=cache) for part in tokens.split([4, 1, 3, 1], 1)]
    torch.testing.assert_close(torch.cat(parts, 1), model(tokens), atol=1e-12, rtol=1e-12)
