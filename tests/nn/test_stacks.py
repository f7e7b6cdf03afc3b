"""A stack of layers: shared weights, gradient checkpointing and layer drop."""

import pytest
import torch

from glassformer.models import PRESETS, build_model, preset
from glassformer.nn import Stack
from oracle import random_model

TINY = [name for name in PRESETS if name.startswith("tiny-")]


@pytest.mark.parametrize("name", ["tiny-bert-base", "tiny-llama", "tiny-t5-small"])
def test_a_shared_layer_equals_copies_of_it(name):
    shared, unrolled = random_model(preset(name, share_layers=True)), random_model(preset(name))
    state = shared.state_dict()
    for key in [key for key in state if "layers.0." in key]:
        state[key.replace("layers.0.", "layers.1.")] = state[key]
    unrolled.load_state_dict(state)
    tokens = torch.randint(0, 40, (2, 6))
    inputs = (tokens, tokens) if shared.kind == "encoder_decoder" else (tokens,)
    torch.testing.assert_close(shared(*inputs), unrolled(*inputs), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("name", TINY)
def test_gradient_checkpointing_is_exact_with_dropout(name):
    model = build_model(preset(name, dropout=0.2, attention_dropout=0.1, activation_dropout=0.1, embedding_dropout=0.1))
    model.train()
    tokens = torch.randint(0, 40, (2, 6))
    inputs = (tokens, tokens) if model.kind == "encoder_decoder" else (tokens,)
    results = []
    for on in (False, True):
        model.set_gradient_checkpointing(on)
        model.zero_grad()
        torch.manual_seed(3)
        output = model(*inputs)
        output.square().sum().backward()
        results.append([output.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    for plain, checkpointed in zip(*results, strict=True):
        assert torch.equal(plain, checkpointed)


def test_gradient_checkpointing_stores_fewer_activations():
    model = build_model(preset("tiny-gpt2", n_decoder_layers=8)).train()
    kept = []
    for on in (False, True):
        model.set_gradient_checkpointing(on)
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x, s=sizes: (s.append(x.numel()), x)[1], lambda x: x):
            model(torch.randint(0, 40, (2, 20)))
        kept.append(sum(sizes))
    assert kept[1] < kept[0] / 2


def test_layer_drop_skips_layers_only_in_training():
    model = build_model(preset("tiny-gpt2", n_decoder_layers=6, layer_drop=0.5, dropout=0.0, attention_dropout=0.0))
    ran = []
    for layer in model.decoder.layers:
        layer.register_forward_hook(lambda *_: ran.append(1))
    tokens = torch.randint(0, 40, (1, 4))
    counts = set()
    for _ in range(20):
        ran.clear()
        model.train()(tokens)
        counts.add(len(ran))
    assert len(counts) > 2
    ran.clear()
    model.eval()(tokens)
    assert len(ran) == 6


def test_the_number_of_layers_must_equal_the_depth_or_be_1():
    layers = build_model(preset("tiny-gpt2")).decoder.layers
    assert Stack([layers[0]], depth=5).depth == 5
    with pytest.raises(ValueError, match="2 layers for a depth of 3: expected 3, or 1 to share"):
        Stack(list(layers), depth=3)


@torch.no_grad()
@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-llama"])
def test_the_last_layer_computes_wanted_tokens_only_unless_a_hook_would_miss_the_others(name):
    model, tokens = random_model(preset(name)), torch.randint(0, 39, (2, 6))
    wanted = torch.tensor([2, 5])
    expected = model.decode(tokens)[[0, 1], wanted][:, None]
    given = []
    first, last = (layer.ffn.down_proj for layer in (model.decoder.layers[0], model.decoder.layers[-1]))
    for linear in (first, last):
        linear.register_forward_pre_hook(lambda _, args: given.append(tuple(args[0].shape[:2])))
    torch.testing.assert_close(model.decode(tokens, wanted=wanted), expected, atol=1e-12, rtol=1e-12)
    assert given == [(2, 6), (2, 6)]  # the hook sees every token
    for linear in (first, last):
        linear._forward_pre_hooks.clear()
    for module in (model.decoder, model.decoder.norm):
        handle = module.register_forward_hook(lambda module, args, output: given.append(tuple(output.shape[:2])))
        given.clear()
        assert model.decode(tokens, wanted=wanted).shape == expected.shape
        assert given == [(2, 6)]
        handle.remove()
    apply = torch.nn.functional.linear
    with pytest.MonkeyPatch.context() as patch:
        given.clear()
        patch.setattr("torch.nn.functional.linear", lambda x, *more: (given.append(x.shape[1]), apply(x, *more))[1])
        torch.testing.assert_close(model.decode(tokens, wanted=wanted), expected, atol=1e-12, rtol=1e-12)
    half = len(given) // 2
    assert set(given[:half]) == {6}
    assert given[half:].count(6) == 3  # queries, keys and values
    assert set(given[half + 3 :]) == {1}
