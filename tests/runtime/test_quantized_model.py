"""Int8 models: close to the float model, in their outputs and in the tokens that they generate."""

import pytest
import torch
from torch import nn

from glassformer.data.corpora.toy import PairTaskData
from glassformer.decoding import GenerationConfig, generate
from glassformer.models import build_model, preset
from glassformer.nn.groupwise_linear import GroupwiseLinear
from glassformer.nn.quantized_linear import Int8Linear
from glassformer.runtime.quantized_model import quantize
from glassformer.text.tokenizer import BEGIN, END, PAD
from glassformer.training import fit, label_smoothed_cross_entropy
from int8_layers import INT8_LAYERS, use_int8_layer


@pytest.fixture(scope="module", params=INT8_LAYERS)
def int8_linear(request):
    with use_int8_layer(request.param) as layer:
        yield layer


def test_quantizing_replaces_every_linear_layer_of_a_copy(int8_linear):
    model = build_model(preset("tiny-marian"))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    quantized = quantize(model)
    assert not any(type(module) is nn.Linear for module in quantized.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_relu_is_fused_into_the_layer_before_it(int8_linear):
    if int8_linear is not Int8Linear:
        pytest.skip("our kernel does not run here")
    for activation, gated in (("relu", False), ("relu", True), ("gelu", False)):
        model = build_model(preset("tiny-marian", activation=activation, gated=gated)).eval()
        network, joined = (m.get_submodule("decoder.layers.0.ffn") for m in (model, quantize(model)))
        assert (joined.act is not network.act) == (activation == "relu" and not gated)
        x = torch.randn(3, 5, network.d_model)
        torch.testing.assert_close(joined(x), network(x), rtol=0, atol=0.05 * network(x).abs().max().item())


def test_routers_of_experts_stay_as_they_are(int8_linear):
    for weights in ("int8", "int4"):
        model = build_model(preset("tiny-qwen2-moe"))
        network = quantize(model, weights).get_submodule("decoder.layers.0.ffn")
        before = model.get_submodule("decoder.layers.0.ffn")
        assert torch.equal(network.router.weight, before.router.weight)
        assert torch.equal(network.shared_gate.weight, before.shared_gate.weight)
        assert not any(type(module) is nn.Linear for module in network.modules())
        # A token whose scores are close may go to another expert, so the network alone is compared, not the model.
        x = torch.randn(3, 5, 16)
        with torch.inference_mode():
            exact, found = before.eval()(x), network(x)
        assert (found - exact).norm() < (0.05 if weights == "int8" else 0.25) * exact.norm()


@pytest.mark.parametrize("name", ["tiny-transformer-base", "tiny-llama", "tiny-t5-small", "tiny-bert-base"])
def test_the_logits_of_a_quantized_model_stay_close(int8_linear, name):
    torch.manual_seed(0)
    model = build_model(preset(name)).eval()
    inputs = [torch.randint(4, 40, (3, 9)) for _ in range(2 if model.kind == "encoder_decoder" else 1)]
    with torch.inference_mode():
        exact, found = model(*inputs), quantize(model)(*inputs)
    assert (found - exact).norm() < 0.05 * exact.norm()


@pytest.mark.parametrize(
    ("name", "n_bytes"), [("tiny-transformer-base", 1), ("tiny-bert-base", 1), ("tiny-llama", 2), ("tiny-gpt2", 2)]
)
def test_activations_take_two_bytes_in_a_decoder_only_model(int8_linear, name, n_bytes):
    quantized = quantize(build_model(preset(name)))
    found = [module.activation_bytes for module in quantized.modules() if isinstance(module, int8_linear)]
    assert set(found) == {n_bytes}


@pytest.fixture(scope="module")
def copier():
    """A model that was trained to copy, and some of its data."""
    torch.manual_seed(0)
    size = {"d_model": 32, "n_heads": 4, "d_ff": 64, "dropout": 0.0, "embedding_dropout": 0.0}
    model = build_model(preset("tiny-transformer-base", **size, vocab_size=14, norm_placement="pre"))

    def loss(batch):
        logits = model(batch.source, batch.target_in, batch.source_mask, batch.target_mask)
        return label_smoothed_cross_entropy(logits, batch.target_out, ignore=PAD)

    data = PairTaskData("copy", 10, min_length=2, max_length=6, seed=0)
    fit(model, data.batches(), loss, steps=200, lr=7e-3)
    return model, data


def test_a_trained_model_gives_the_same_texts_in_int8(int8_linear, copier):
    model, data = copier
    sources = [[token for token in row if token != PAD] for row in next(data.batches()).source.tolist()]
    config = GenerationConfig(max_new_tokens=8)
    texts = [
        [written[0].tokens for written in generate(m, sources, config, begin=BEGIN, end=END)]
        for m in (model, quantize(model))
    ]
    same = sum(a == b for a, b in zip(*texts, strict=True))
    assert same >= 0.98 * len(sources)


@pytest.mark.parametrize("name", ["tiny-transformer-base", "tiny-llama", "tiny-t5-small", "tiny-bert-base"])
def test_the_logits_of_an_int4_model_stay_close(name):
    torch.manual_seed(0)
    model = build_model(preset(name)).eval()
    inputs = [torch.randint(4, 40, (3, 9)) for _ in range(2 if model.kind == "encoder_decoder" else 1)]
    with torch.inference_mode():
        exact, found = model(*inputs), quantize(model, "int4")(*inputs)
    assert (found - exact).norm() < 0.25 * exact.norm()


def test_int4_has_4_bits_in_layers_and_8_in_the_head():
    model = build_model(preset("tiny-llama"))
    quantized = quantize(model, "int4")
    assert not any(type(module) is nn.Linear for module in quantized.modules())
    bits = {name: m.matrix.form.bits for name, m in quantized.named_modules() if isinstance(m, GroupwiseLinear)}
    assert {value for name, value in bits.items() if ".layers." in name} == {4}
    assert {name for name, value in bits.items() if value == 8} == {"head.out_proj"}
    assert torch.equal(quantized.embeddings.tokens.weight, model.embeddings.tokens.weight)
