"""Keys and values never exceed their bound, and those beyond float16 are cached in float32."""

import random
from dataclasses import replace

import pytest
import torch

from glassformer.decoding import GenerationConfig, generate
from glassformer.kernels.cpp_library import KernelBuildError
from glassformer.models import EncoderDecoderModel, build_model, preset
from glassformer.runtime import choose_runner
from glassformer.runtime.cache_bounds import LIMIT, fits_float16, largest_cached
from glassformer.runtime.packed_model import pack
from glassformer.runtime.quantized_model import quantize


def quantized(model, kind="int8", *, is_packed=True):
    try:
        return quantize(pack(model) if is_packed else model, kind)
    except KernelBuildError as error:
        pytest.skip(f"no int8 layers: {error}")


def made(**changes):
    sizes = {"d_model": 32, "d_ff": 48, "n_heads": 2, "n_kv_heads": None, "head_dim": None}
    return build_model(replace(preset("tiny-transformer-base"), **{**sizes, **changes})).eval()


def largest_of(model, source, target):
    """The largest key or value of the decoder for these tokens."""
    with torch.inference_mode():
        memory = EncoderDecoderModel.encode(model, source)
        cache = model.new_cache(len(target), target.shape[1], source.shape[1])
        model.decode(target, memory, cache=cache)
    stores = [*cache.keys, *cache.values, *cache.memory_keys, *cache.memory_values]
    return max(float(store.abs().max()) for store in stores)


@pytest.mark.parametrize("seed", range(12))
def test_no_key_or_value_exceeds_the_bound(seed):
    choice = random.Random(seed)
    torch.manual_seed(seed)
    model = made(
        norm=choice.choice(["layer", "rms", "offset_rms", "mean_std"]),
        norm_placement=choice.choice(["pre", "post", "sandwich", "output"]),
        positions=choice.choice(["sinusoidal", "learned", "rotary", "relative", "alibi"]),
        n_kv_heads=choice.choice([None, 1]),
        qk_norm=choice.choice([False, True]),
        clip_qkv=choice.choice([None, 2.0]),
        residual_multiplier=choice.choice([1.0, 3.0]),
        scale_embeddings=choice.choice([False, True]),
        embedding_norm=choice.choice([False, True]),
        final_norm=choice.choice([None, True]),
        share_layers=choice.choice([False, True]),
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(choice.choice([1.0, 5.0])).add_(torch.randn_like(parameter) * choice.choice([0.0, 0.5]))
    model = quantized(model, choice.choice(["int8", "int4"]), is_packed=choice.choice([True, False]))
    source, target = torch.randint(0, 40, (4, 6)), torch.randint(0, 40, (4, 5))
    found, bound = largest_of(model, source, target), largest_cached(model)
    assert 0 < found <= bound
    assert fits_float16(model) == (bound <= LIMIT)


def test_an_encoder_without_a_final_norm_has_no_bound():
    """Its output is a sum without limit."""
    model = quantized(made(norm_placement="pre", final_norm=False))
    assert largest_cached(model) == float("inf")
    assert choose_runner._cache_dtype(model) is None


def test_layers_that_are_not_quantized_have_no_bound():
    assert largest_cached(made()) == float("inf")


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("part", ["self_attn", "cross_attn"])
def test_keys_beyond_float16_change_no_text(part, num_beams):
    """A large bias of the keys adds the same to all scores of a query, so that attention weights stay the same.

    In float16 it is infinite: all scores are minus infinity, and attention returns zeros.
    """
    torch.manual_seed(0)
    model = made()
    plain = quantized(model)
    with torch.no_grad():
        for layer in model.decoder.layers:
            attention = getattr(layer, part)
            attention.k_proj.bias[0] = 1e5
            attention.q_proj.weight[0] = 0
            attention.q_proj.bias[0] = -1e-3
    large = quantized(model)
    assert choose_runner._cache_dtype(plain) == torch.float16
    assert choose_runner._cache_dtype(large) is None
    with torch.no_grad():
        for layer in model.decoder.layers:
            getattr(layer, part).k_proj.bias[0] = 0
    expected = quantized(model)
    config = GenerationConfig(max_new_tokens=8, min_new_tokens=8, num_beams=num_beams)
    inputs = [[5, 6, 7, 8, 9], [10, 11]]
    found, wanted = (generate(each, inputs, config, end=3, begin=1) for each in (large, expected))
    for (text,), (same,) in zip(found, wanted, strict=True):
        assert text.tokens == same.tokens
