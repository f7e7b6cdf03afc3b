"""Recorded activations equal the oracle's, recording changes nothing, and patches replace what they name."""

import gc

import pytest
import torch

from glassformer.decoding import GenerationConfig, generate
from glassformer.inspect.recorder import _WATCHERS, activation_names, match_names, patch, record
from glassformer.models import build_model, preset
from oracle import random_inputs, random_model, twin

KINDS = ["tiny-bert-base", "tiny-llama", "tiny-marian"]
FAMILIES = [
    *KINDS,
    "tiny-albert-base",
    "tiny-deberta-v3-base",
    "tiny-qwen2-moe",
    *(pytest.param(name, marks=pytest.mark.full) for name in ("tiny-t5-small", "tiny-gpt2", "tiny-umt5-small")),
]


def watched_oracle(model, inputs):
    """Run the oracle, and return the inputs and outputs of its layers under the names of `record`."""
    oracle, seen = twin(model), {}

    def watch(owner, name, before=None, after=None, method="forward"):
        plain = getattr(owner, method)

        def call(x, *args, **kwargs):
            if before:
                seen[f"{name}.{before}"] = x
            found = plain(x, *args, **kwargs)
            if after:
                seen[f"{name}.{after}"] = found
            return found

        setattr(owner, method, call)

    stacks = {kind: getattr(oracle, kind) for kind in ("encoder", "decoder") if hasattr(oracle, kind)}
    stacks = stacks or {model.kind: oracle.stack}
    for kind, stack in stacks.items():
        for index, layer in enumerate(stack.layers):
            name = f"{kind}.layers.{index}"
            watch(layer, name, "resid.in", "resid.out")
            watch(layer.self_attn, f"{name}.self_attn", "in", "out")
            watch(layer.self_attn_sublayer, name, None, "resid.mid")
            watch(layer.self_attn.core, f"{name}.self_attn", "q", "heads")
            watch(layer.ffn, f"{name}.ffn", "in", "out")
            if layer.cross_attn is not None:
                watch(layer.cross_attn, f"{name}.cross_attn", "in", "out")
                watch(layer.cross_attn.core, f"{name}.cross_attn", "q", "heads")
                watch(layer.cross_attn_sublayer, name, None, "resid.cross")
    seen["head.out"] = oracle.forward(**{name: value.numpy() for name, value in inputs.items()})
    for kind, stack in stacks.items():
        for index, layer in enumerate(stack.layers):
            for part in ("self_attn", "cross_attn"):
                if getattr(layer, part) is not None:
                    seen[f"{kind}.layers.{index}.{part}.weights"] = getattr(layer, part).core.weights
    return seen


@pytest.mark.parametrize("name", KINDS)
def test_recorded_numbers_equal_the_oracle(name):
    model = random_model(preset(name))
    inputs = random_inputs(model.config)
    with torch.no_grad(), record(model, "*") as recorded:
        model(**inputs)
    expected = watched_oracle(model, inputs)
    assert len(expected) >= 20
    for key, value in expected.items():
        if key != "head.out" or model.head is not None:
            torch.testing.assert_close(recorded[key], torch.from_numpy(value), atol=1e-10, rtol=1e-10, msg=key)


@pytest.mark.parametrize("name", FAMILIES)
def test_recording_changes_no_output_and_every_name_is_recorded(name):
    model = random_model(preset(name), dtype=torch.float32)
    inputs = random_inputs(model.config)
    before = model(**inputs)
    with record(model, "*") as recorded:
        during = model(**inputs)
    assert torch.equal(before, during)
    assert torch.equal(before, model(**inputs))
    assert list(recorded) == [key for key in activation_names(model) if key in recorded]
    assert {*recorded} == {*activation_names(model)}
    assert not any(value.requires_grad for value in recorded.values())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("name", FAMILIES)
def test_patching_with_the_original_changes_nothing(name):
    model = random_model(preset(name))
    inputs = random_inputs(model.config)
    with torch.no_grad():
        with record(model, "*") as recorded:
            before = model(**inputs)
        for key in match_names(model, "*.layers.1.*"):
            with patch(model, key, recorded[key]):
                torch.testing.assert_close(model(**inputs), before, atol=1e-12, rtol=1e-12, msg=key)
            with patch(model, key, lambda x: x):
                assert torch.equal(model(**inputs), before), key


def test_a_patch_is_seen_by_records_inside_and_outside_of_it():
    model, tokens = random_model(preset("tiny-gpt2")), torch.randint(0, 40, (1, 5))
    for key in ("decoder.layers.0.ffn.act", "decoder.layers.0.self_attn.weights", "decoder.layers.1.resid.in"):
        with record(model, key) as outer, patch(model, key, torch.zeros_like), record(model, key) as inner:
            model(tokens)
        assert not outer[key].any()
        assert not inner[key].any()


def test_patched_weights_mix_the_values():
    model, tokens = random_model(preset("tiny-llama")), torch.randint(0, 40, (1, 5))
    name = "decoder.layers.0.self_attn"
    first = torch.zeros(1, 4, 5, 5, dtype=torch.float64)
    first[..., 0] = 1.0
    with torch.no_grad(), patch(model, f"{name}.weights", first), record(model, f"{name}.*") as recorded:
        model(tokens)
    values = recorded[f"{name}.v"].repeat_interleave(model.config.n_heads // model.config.kv_heads, 1)
    torch.testing.assert_close(recorded[f"{name}.heads"], values[:, :, :1].expand(-1, -1, 5, -1))


def test_layers_that_share_weights_have_their_own_names():
    model, tokens = random_model(preset("tiny-albert-base")), torch.randint(0, 40, (1, 5))
    with record(model, "encoder.layers.*.resid.*") as recorded:
        model(tokens)
    assert torch.equal(recorded["encoder.layers.0.resid.out"], recorded["encoder.layers.1.resid.in"])
    assert not torch.equal(recorded["encoder.layers.0.resid.out"], recorded["encoder.layers.1.resid.out"])


def test_gradients_reach_through_a_patch():
    model, tokens = random_model(preset("tiny-gpt2")), torch.randint(0, 40, (1, 5))
    with record(model, "embeddings.out") as recorded:
        model(tokens)
    embedded = recorded["embeddings.out"].requires_grad_()
    with patch(model, "embeddings.out", embedded):
        model(tokens).sum().backward()
    assert embedded.grad.abs().sum() > 0


def test_steps_of_decoding_are_recorded_one_by_one_and_beams_as_rows():
    model = random_model(preset("tiny-marian"), dtype=torch.float32)
    config = GenerationConfig(num_beams=3, max_new_tokens=4, min_new_tokens=4)
    plain = generate(model, [[5, 6, 7]], config, begin=1, end=2)
    name = "decoder.layers.0.cross_attn.weights"
    with record(model, name) as recorded:
        found = generate(model, [[5, 6, 7]], config, begin=1, end=2)
    assert [one.tokens for one in found[0]] == [one.tokens for one in plain[0]]
    assert [tuple(step.shape) for step in recorded.steps(name)][1:] == [(3, model.config.n_heads, 1, 3)] * 3
    torch.testing.assert_close(recorded[name].sum(-1), torch.ones(3, model.config.n_heads, 1))


@pytest.mark.full
def test_checkpointed_layers_are_recorded_once_and_patched_twice():
    model = build_model(preset("tiny-gpt2"))
    model.set_gradient_checkpointing()
    model.train()
    tokens, name = torch.randint(0, 40, (1, 5)), "decoder.layers.0.ffn.out"
    with record(model, name) as recorded, patch(model, name, torch.zeros_like):
        model(tokens).sum().backward()
    assert len(recorded.steps(name)) == 1
    assert model.decoder.layers[0].ffn.up_proj.weight.grad is None


def test_errors_name_what_is_wrong():
    model, tokens = random_model(preset("tiny-gpt2")), torch.randint(0, 40, (1, 5))
    with pytest.raises(
        ValueError, match=r"no activation is named 'decoder.layers.0.ffn.atc'.*decoder.layers.0.ffn.act"
    ):
        record(model, "decoder.layers.0.ffn.atc").__enter__()
    with pytest.raises(ValueError, match="given no pattern"):
        record(model).__enter__()
    with pytest.raises(TypeError, match="model is a Linear: expected an encoder"):
        record(torch.nn.Linear(2, 2), "*").__enter__()
    with pytest.raises(TypeError, match="value is 3: expected a tensor, or a function"):
        patch(model, "head.out", 3).__enter__()
    wrong = pytest.raises(ValueError, match=r"the patch of embeddings.out gives \(2,\): expected a tensor \(1, 5, ")
    with wrong, patch(model, "embeddings.out", torch.zeros(2)):
        model(tokens)
    with record(model, "head.out") as recorded, pytest.raises(KeyError, match="no forward pass ran"):
        recorded["head.out"]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_no_model_is_kept_alive():
    model = random_model(preset("tiny-gpt2"))
    with record(model, "head.out"):
        model(torch.randint(0, 40, (1, 5)))
    assert not len(_WATCHERS)
    del model
    gc.collect()
    assert not len(_WATCHERS)
