"""A packed model gives the same results as the original."""

from dataclasses import replace

import pytest
import torch

from glassformer.decoding import GenerationConfig, generate
from glassformer.kernels.cpp_library import KernelBuildError
from glassformer.models import ModelConfig, build_model, preset
from glassformer.runtime.packed_model import PaddedLinear, has_fused_storage, pack, packed_twin, share_fused_storage
from glassformer.runtime.quantized_model import quantize
from recording import assert_same

SMALL = ModelConfig(
    vocab_size=23, n_decoder_layers=2, d_model=16, n_heads=4, d_ff=24, head="language_model", max_len=64
)
CONFIGS = {
    "plain": SMALL,
    "grouped, rotary, normed": replace(SMALL, n_kv_heads=2, positions="rotary", qk_norm=True, qkv_bias=False),
    "tied, gated": replace(SMALL, tie="output", output_bias=False, gated=True, activation="silu"),
    "with a source": replace(SMALL, n_encoder_layers=2, tie="all", output_bias=False),
    "umt5": preset("tiny-umt5-small"),
    "nllb": preset("tiny-nllb"),
    "falcon": preset("tiny-falcon-7b"),
    "yarn": preset("tiny-llama", head_dim=8, rope_width=4, rope_scaling="yarn", rope_factor=2.0, rope_original_len=16),
}


def make(config):
    torch.manual_seed(0)
    model = build_model(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    return model


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("beams", [1, 3])
def test_a_packed_model_gives_the_same_texts(config, beams):
    model = make(config)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    begin = 1 if config.n_encoder_layers else None
    search = GenerationConfig(max_new_tokens=12, num_beams=beams)
    inputs = [[5, 6, 7], [8], [9, 10, 11, 12, 13]]
    plain, packed = (generate(m, inputs, search, begin=begin, end=2) for m in (model, pack(model)))
    assert_same(plain, packed)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_packed_model_gives_the_same_logits(config):
    model = make(config)
    tokens = torch.randint(3, 23, (3, 9))
    inputs = (tokens, tokens.flip(1)) if config.n_encoder_layers else (tokens,)
    torch.testing.assert_close(pack(model)(*inputs), model(*inputs), atol=1e-12, rtol=1e-12)


def test_a_packed_deberta_gives_the_same_logits():
    model, tokens = make(preset("tiny-deberta-v3-base")), torch.randint(40, (2, 9))
    with torch.no_grad():
        torch.testing.assert_close(pack(model)(tokens), model(tokens))


def test_a_packed_model_can_be_quantized():
    model = make(SMALL).float()
    try:
        small = quantize(pack(model))
    except KernelBuildError:
        pytest.skip("no int8 kernel here")
    tokens = torch.randint(3, 23, (2, 5))
    torch.testing.assert_close(small(tokens), quantize(model)(tokens), atol=1e-4, rtol=1e-4)


def test_padded_outputs_are_sliced_off():
    layer = torch.nn.Linear(8, 37)
    x = torch.randn(4, 8)
    padded = PaddedLinear(layer)
    assert padded.weight.shape == (64, 8)
    torch.testing.assert_close(padded(x), layer(x))


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_twin_shares_the_memory_of_its_model(config):
    model = make(config)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert not has_fused_storage(model)
    share_fused_storage(model)
    assert has_fused_storage(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    twin = packed_twin(model)
    memory = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    assert {parameter.untyped_storage().data_ptr() for parameter in twin.parameters()} <= memory
    tokens = torch.randint(3, 23, (3, 9))
    inputs = (tokens, tokens.flip(1)) if config.n_encoder_layers else (tokens,)
    torch.testing.assert_close(twin(*inputs), model(*inputs), atol=1e-12, rtol=1e-12)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(*inputs).square().mean().backward()
    optimizer.step()  # training changes both
    torch.testing.assert_close(twin(*inputs), model(*inputs), atol=1e-12, rtol=1e-12)
    assert not torch.equal(model.head.out_proj.weight, before["head.out_proj.weight"])
    assert not has_fused_storage(model.float())


def test_keys_without_a_bias_are_fused_with_a_bias_of_zero():
    model, tokens = make(preset("tiny-gpt2", key_bias=False)), torch.randint(40, (2, 9))
    with torch.no_grad():
        torch.testing.assert_close(pack(model)(tokens), model(tokens), atol=1e-5, rtol=0)


def test_layers_with_adapters_have_no_fused_storage():
    from glassformer.training.lora import add_adapters
    from glassformer.training.train_config import TrainConfig

    model = build_model(CONFIGS["tied, gated"])
    share_fused_storage(model)
    add_adapters(model, TrainConfig(lora_rank=2))
    assert not has_fused_storage(model)
