"""Captured attention weights equal the reference, and capturing does not change the outputs."""

from dataclasses import replace

import pytest
import torch

from glassformer.models import preset
from glassformer.nn import MultiHeadAttention, capture_attention
from oracle import random_model, twin


def test_captured_weights_equal_the_reference():
    model = random_model(preset("tiny-marian"))
    source, target = torch.randint(0, 40, (2, 5)), torch.randint(0, 40, (2, 4))
    mask = torch.ones(2, 5, dtype=torch.bool)
    mask[1, 3:] = False
    with capture_attention(model) as captured:
        model(source, target, mask)
    oracle = twin(model)
    oracle.forward(source.numpy(), target.numpy(), mask.numpy())
    assert len(captured) == 2 + 2 + 2
    for index in range(2):
        for name, layer in (
            (f"encoder.layers.{index}.self_attn", oracle.encoder.layers[index].self_attn),
            (f"decoder.layers.{index}.self_attn", oracle.decoder.layers[index].self_attn),
            (f"decoder.layers.{index}.cross_attn", oracle.decoder.layers[index].cross_attn),
        ):
            torch.testing.assert_close(captured[name], torch.from_numpy(layer.core.weights), atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-t5-small", "tiny-bert-base"])
def test_selected_layers_heads_and_rows_equal_slices_of_all(name):
    model = random_model(preset(name))
    tokens = torch.randint(0, 40, (2, 6))
    inputs = (tokens, tokens) if model.kind == "encoder_decoder" else (tokens,)
    with capture_attention(model) as everything:
        model(*inputs)
    with capture_attention(model, layers=[1], heads=[3, 0], rows=[-1, 2]) as some:
        model(*inputs)
    assert some
    assert all(".layers.1." in key for key in some)
    for key, weights in some.items():
        torch.testing.assert_close(weights, everything[key][:, [3, 0]][:, :, [-1, 2]])


def test_capture_does_not_change_the_output_and_removes_its_hooks():
    model = random_model(preset("tiny-gpt2"), dtype=torch.float32)
    tokens = torch.randint(0, 40, (2, 6))
    before = model(tokens)
    state = {name: set(vars(module)) for name, module in model.named_modules()}
    with capture_attention(model) as captured:
        during = model(tokens)
    assert torch.equal(before, during)
    assert torch.equal(before, model(tokens))
    assert len(captured.steps("decoder.layers.0.self_attn")) == 1
    assert not captured["decoder.layers.0.self_attn"].requires_grad
    assert {name: set(vars(module)) for name, module in model.named_modules()} == state
    assert not any(module._forward_hooks for module in model.modules())


def test_hooks_are_removed_after_an_error():
    model = random_model(preset("tiny-gpt2"))
    with pytest.raises(RuntimeError, match="by hand"), capture_attention(model):
        raise RuntimeError("by hand")
    assert not any(module._forward_hooks for module in model.modules())


def test_weights_of_cached_steps_equal_those_of_the_whole_sequence():
    model = random_model(preset("tiny-llama"))
    tokens = torch.randint(0, 40, (1, 5))
    with capture_attention(model) as whole:
        model(tokens)
    cache = model.new_cache(1, 5)
    with torch.no_grad(), capture_attention(model) as steps:
        for token in tokens.split(1, dim=1):
            model(token, cache=cache)
    name = "decoder.layers.1.self_attn"
    for place, step in enumerate(steps.steps(name)):
        torch.testing.assert_close(step[:, :, 0], whole[name][:, :, place, : place + 1])


def test_a_shared_layer_adds_one_record_per_application():
    model = random_model(preset("tiny-albert-base", n_encoder_layers=3))
    with capture_attention(model) as captured:
        model(torch.randint(0, 40, (1, 4)))
    assert len(captured.steps("encoder.layers.0.self_attn")) == 3


def test_gradient_checkpointing_records_once():
    model = random_model(preset("tiny-gpt2")).train()
    model.set_gradient_checkpointing()
    with capture_attention(model, layers=[-1]) as captured:
        model(torch.randint(0, 40, (1, 4))).sum().backward()
    assert list(captured) == ["decoder.layers.1.self_attn"]
    assert len(captured.steps("decoder.layers.1.self_attn")) == 1


def test_attention_modules_of_any_name_are_captured():
    class Mixer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.mixer = MultiHeadAttention(8, 2)

        def forward(self, x):
            return self.mixer(x)

    model = Mixer()
    with capture_attention(model) as captured:
        model(torch.randn(1, 3, 8))
    assert captured["mixer"].shape == (1, 2, 3, 3)


def test_negative_layers_count_from_the_end_of_each_stack():
    model = random_model(replace(preset("tiny-marian"), n_encoder_layers=3, n_decoder_layers=2))
    tokens = torch.randint(0, 40, (1, 4))
    with capture_attention(model, layers=[-1]) as captured:
        model(tokens, tokens)
    names = {"encoder.layers.2.self_attn", "decoder.layers.1.self_attn", "decoder.layers.1.cross_attn"}
    assert set(captured) == names
    with capture_attention(model, layers=[-3]) as captured:
        model(tokens, tokens)
    assert set(captured) == {"encoder.layers.0.self_attn"}


def test_errors_name_the_wrong_selection():
    model = random_model(preset("tiny-gpt2"))
    with pytest.raises(IndexError, match="layers holds 7: expected -2 to 1"), capture_attention(model, layers=[0, 7]):
        pass
    with (
        pytest.raises(ValueError, match=r"match no attention module; this model has: decoder"),
        capture_attention(model, kinds=["x"]),
    ):
        pass
    with pytest.raises(ValueError, match=r"heads=\[\]: expected at least one"), capture_attention(model, heads=[]):
        pass
    with pytest.raises(IndexError, match="heads holds 4: expected -4 to 3"), capture_attention(model, heads=[4]):
        model(torch.randint(0, 40, (1, 4)))
    with capture_attention(model) as captured:
        model(torch.randint(0, 40, (1, 4)))
    with pytest.raises(KeyError, match=r"captured: decoder\.layers\.0\.self_attn"):
        captured["encoder.layers.0.self_attn"]
