"""Costs computed from the config equal those that torch counts while the model runs."""

import random
from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from glassformer.models import PRESETS, ModelConfig, build_model, preset
from glassformer.models.costs import (
    count_active_parameters,
    count_parameters,
    forward_flops,
    shapes_by_name,
    training_flops,
    weight_bytes_by_format,
)
from glassformer.models.factory import build_on_meta
from glassformer.nn.layers import Layer
from glassformer.runtime.prepare_model import weight_bytes

TINY = [name for name in PRESETS if name.startswith("tiny-")]
HEADS = ["none", "language_model", "sequence_class", "token_class", "span", "embedding"]


def random_config(seed):
    """Any small model whose sizes all differ, so that a mistaken size cannot equal the right one."""
    draw = random.Random(seed)
    kind = draw.choice(["encoder", "decoder", "encoder_decoder"])
    head = draw.choice(HEADS)
    n_heads = draw.choice([1, 2, 4])
    has_transform = head in ("language_model", "sequence_class", "embedding") and draw.random() < 0.5
    is_narrow = draw.random() < 0.5
    may_tie = head == "language_model" and (has_transform or not is_narrow)
    ties = ["none"] + ["output"] * may_tie
    if kind == "encoder_decoder":
        ties += ["embeddings"] + ["all"] * may_tie
    tie = draw.choice(ties)
    config = ModelConfig(
        vocab_size=23,
        source_vocab_size=29 if kind == "encoder_decoder" and tie in ("none", "output") else None,
        n_encoder_layers=0 if kind == "decoder" else draw.choice([1, 3]),
        n_decoder_layers=0 if kind == "encoder" else draw.choice([1, 2]),
        d_model=20,
        d_ff=36,
        max_len=24,
        n_heads=n_heads,
        n_kv_heads=draw.choice([None, 1, n_heads]),
        head_dim=draw.choice([None, 6]) if n_heads != 4 else 6,
        qk_norm=draw.random() < 0.5,
        qkv_bias=draw.random() < 0.5,
        ffn_bias=draw.random() < 0.5,
        sliding_window=draw.choice([None, 3]),
        gated=draw.random() < 0.5,
        norm=draw.choice(["layer", "rms", "mean_std"]),
        norm_placement=draw.choice(["pre", "post"]),
        positions=draw.choice(["sinusoidal", "learned", "rotary", "relative", "alibi", "none"]),
        relative_buckets=8,
        relative_max_distance=10,
        token_types=2 if kind == "encoder" else 0,
        embedding_norm=draw.random() < 0.5,
        embedding_width=10 if is_narrow else draw.choice([None, 20]),
        tie=tie,
        share_layers=draw.random() < 0.5,
        head=head,
        n_labels=7 if head in ("sequence_class", "token_class") else None,
        head_transform=has_transform,
        dropout=0.0,
    )
    if kind != "decoder" or draw.random() < 0.5:
        return config
    return replace(
        config,
        n_experts=draw.choice([3, 5]),
        experts_per_token=draw.choice([1, 2]),
        expert_d_ff=draw.choice([None, 14]),
        shared_expert_d_ff=draw.choice([None, 18]),
        dense_layers=() if config.share_layers else draw.choice([(), (0,)]),
    )


CONFIGS = {name: preset(name) for name in TINY} | {f"random-{seed}": random_config(seed) for seed in range(28)}
OFTEN = {*TINY, *(f"random-{seed}" for seed in range(8))}
every_config = pytest.mark.parametrize(
    "config",
    [pytest.param(one, id=name, marks=[] if name in OFTEN else pytest.mark.full) for name, one in CONFIGS.items()],
)


def lengths(config, source_length, target_length):
    sizes = {"batch": 3}
    if config.n_encoder_layers:
        sizes["source_length"] = source_length
    if config.n_decoder_layers:
        sizes["target_length"] = target_length
    return sizes


def forward(model, sizes):
    texts = [torch.zeros(sizes["batch"], length, dtype=torch.long) for name, length in sizes.items() if name != "batch"]
    return model(*texts)


def test_the_random_configs_cover_every_kind_and_head():
    drawn = [random_config(seed) for seed in range(28)]
    assert {config.head for config in drawn} == set(HEADS)
    assert {config.kind for config in drawn} == {"encoder", "decoder", "encoder_decoder"}
    for field in ("gated", "share_layers", "head_transform"):
        assert {getattr(config, field) for config in drawn} == {True, False}
    assert any(config.kv_heads < config.n_heads for config in drawn)
    assert any(config.table_width != config.d_model and config.ties_embeddings for config in drawn)


@every_config
def test_counted_parameters_equal_those_of_the_model(config):
    assert count_parameters(config) == build_model(config).n_parameters()


@pytest.mark.parametrize(("name", "millions"), [("gpt2", 124), ("bert-base", 110), ("llama", 135), ("t5-small", 61)])
def test_full_size_presets_have_the_published_parameter_counts(name, millions):
    assert round(count_parameters(preset(name)) / 1e6) == millions


@every_config
def test_forward_flops_equal_torchs_count(config):
    model = build_model(config, backend="math").eval()
    sizes = lengths(config, 5, 7)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        forward(model, sizes)
    assert forward_flops(config, **sizes) == counter.get_total_flops()


@every_config
def test_training_flops_equal_torchs_count(config):
    model = build_model(config, backend="math").train()
    sizes = lengths(config, 5, 7)
    with FlopCounterMode(display=False) as counter:
        forward(model, sizes).sum().backward()
    assert training_flops(config, **sizes) == counter.get_total_flops()


@pytest.mark.parametrize(
    ("name", "sizes", "message"),
    [
        ("tiny-gpt2", {"batch": 2, "source_length": 3, "target_length": 3}, "source_length=3 for kind 'decoder'"),
        ("tiny-bert-base", {"batch": 2, "target_length": 3}, "source_length=0: expected a whole number"),
        ("tiny-marian", {"batch": 2, "source_length": 3}, "target_length=0: expected a whole number"),
        ("tiny-gpt2", {"batch": 0, "target_length": 3}, "batch=0: expected a whole number"),
    ],
)
def test_a_length_of_a_missing_stack_is_refused(name, sizes, message):
    with pytest.raises(ValueError, match=message):
        forward_flops(preset(name), **sizes)


@pytest.mark.parametrize("name", [name for name in PRESETS if name.startswith("tiny-")])
def test_the_memory_in_each_format_is_that_of_the_prepared_model(name):
    config = preset(name)
    found, model = weight_bytes_by_format(config), build_on_meta(config)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        expected = model.n_parameters() * dtype.itemsize
        assert found[str(dtype).removeprefix("torch.")] == weight_bytes(config, dtype) == expected
    inner = {part for layer in model.modules() if isinstance(layer, Layer) for part in layer.modules()}
    linear = [module for module in model.modules() if type(module) is torch.nn.Linear]
    tables = {module.weight for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    n_replaced = sum(module.weight.numel() for module in linear if module.weight not in tables)
    n_float_bytes = 4 * (model.n_parameters() - n_replaced)
    for quantize, bits in (("int8", (8, 8)), ("int4", (5, 8.5))):
        size = sum(module.weight.numel() * bits[module not in inner] for module in linear) / 8
        assert found[quantize] == weight_bytes(config, torch.float32, quantize) == int(size) + n_float_bytes


def test_shapes_are_those_of_the_built_model():
    for seed in range(5):
        config = random_config(seed)
        shapes = {name: tuple(parameter.shape) for name, parameter in build_on_meta(config).named_parameters()}
        assert shapes_by_name(config) == shapes


def test_active_parameters_are_those_of_the_chosen_experts():
    config = preset("tiny-qwen2-moe", dense_layers=(0,))
    expert = build_model(config).decoder.layers[1].ffn.experts[0]
    idle = (config.n_experts - config.experts_per_token) * sum(p.numel() for p in expert.parameters())
    assert count_active_parameters(config) == count_parameters(config) - idle
    assert count_active_parameters(preset("tiny-llama")) == count_parameters(preset("tiny-llama"))
