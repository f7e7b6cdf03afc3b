"""Switching off a part equals removing its weights; without positions the order has no effect."""

import pytest
import torch

from glassformer.inspect.ablation import ablate, ablation_names
from glassformer.models import preset
from oracle import random_inputs, random_model


@pytest.mark.parametrize("name", ["tiny-bert-base", "tiny-llama", "tiny-marian"])
def test_ablating_a_head_equals_zeroing_its_slice_of_the_output_projection(name):
    model = random_model(preset(name))
    inputs = random_inputs(model.config)
    part = "decoder.layers.1.cross_attn" if name == "tiny-marian" else f"{model.kind}.layers.1.self_attn"
    with torch.no_grad():
        with ablate(model, [f"{part}.head.2"]):
            found = model(**inputs)
        size = model.config.head_size
        model.get_submodule(part).out_proj.weight[:, 2 * size : 3 * size] = 0.0
        torch.testing.assert_close(found, model(**inputs), atol=1e-12, rtol=1e-12)


def test_ablating_a_sublayer_leaves_the_residual():
    model = random_model(preset("tiny-gpt2"))
    inputs = random_inputs(model.config)
    with torch.no_grad():
        with ablate(model, ["decoder.layers.0.ffn", "decoder.layers.1"]):
            found = model(**inputs)
        model.decoder.layers[0].ffn.down_proj.weight.zero_()
        model.decoder.layers[0].ffn.down_proj.bias.zero_()
        model.decoder.layers = model.decoder.layers[:1]
        model.decoder.depth = 1
        torch.testing.assert_close(found, model(**inputs), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("name", ["tiny-bert-base", "tiny-deberta-v3-base", "tiny-t5-small", "tiny-marian"])
def test_without_positions_an_encoder_does_not_see_the_order(name):
    model = random_model(preset(name))
    tokens = torch.randint(4, 40, (1, 6))
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    encode = model.encode
    with torch.no_grad(), ablate(model, ["positions"]):
        torch.testing.assert_close(encode(tokens)[:, order], encode(tokens[:, order]))
    with torch.no_grad():
        assert not torch.allclose(encode(tokens)[:, order], encode(tokens[:, order]))


def test_unknown_parts_are_refused():
    model = random_model(preset("tiny-gpt2"))
    assert "decoder.layers.1.self_attn.head.0" in ablation_names(model)
    with pytest.raises(ValueError, match=r"no part 'decoder.layers.9' to switch off: did you mean 'decoder.layers"):
        ablate(model, ["decoder.layers.9"]).__enter__()
