"""Every option and every preset: the torch model against the NumPy one."""

from dataclasses import fields, replace

import pytest

from glassformer import reference
from glassformer.models import PRESETS, ModelConfig, preset
from glassformer.reference.config import EXEMPT
from oracle import assert_oracle_agrees

ENCODER = ModelConfig(vocab_size=11, n_encoder_layers=2, d_model=12, n_heads=4, d_ff=10, max_len=9)
DECODER = replace(ENCODER, n_encoder_layers=0, n_decoder_layers=2, head="language_model")
BOTH = replace(ENCODER, n_decoder_layers=2, head="language_model", source_vocab_size=13)
KINDS = {"encoder": ENCODER, "decoder": DECODER, "encoder_decoder": BOTH}

RELATIVE = {"positions": "relative", "relative_buckets": 8, "relative_max_distance": 12}
ROTARY = {"positions": "rotary", "head_dim": 8}
LLAMA3 = ROTARY | {"rope_scaling": "llama3", "rope_factor": 4.0, "rope_original_len": 40, "rope_theta": 100.0}
YARN = LLAMA3 | {"rope_scaling": "yarn"}
LONG = ROTARY | {"rope_scaling": "longrope", "rope_factor": 2.0, "rope_original_len": 8}
LONG |= {"rope_short_divisors": (1.0, 1.5, 2.0, 3.0), "rope_long_divisors": (2.0, 1.0, 4.0, 5.0)}
DISENTANGLED = RELATIVE | {"positions": "disentangled", "kinds": ["encoder"]}
EXPERTS = {"n_experts": 4, "kinds": ["decoder"]}
CLASSES = {"head": "sequence_class", "n_labels": 3}
TOKENS = {"head": "token_class", "n_labels": 4}
NARROW = {"embedding_width": 6}
ONE_VOCABULARY = {"source_vocab_size": None}

# Each field with the settings that exercise it. A value that belongs to one kind of model says so under "kinds".
OPTIONS: dict[str, list[dict]] = {
    "vocab_size": [{"vocab_size": 5}],
    "source_vocab_size": [{"source_vocab_size": 17, "kinds": ["encoder_decoder"]}],
    "n_encoder_layers": [{"n_encoder_layers": 1, "kinds": ["encoder", "encoder_decoder"]}],
    "n_decoder_layers": [{"n_decoder_layers": 3, "kinds": ["decoder", "encoder_decoder"]}],
    "d_model": [{"d_model": 16}, {"d_model": 15, "n_heads": 3}],
    "d_ff": [{"d_ff": 7}],
    "max_len": [{"max_len": 7}, {"max_len": None, "positions": "none"}],
    "n_heads": [{"n_heads": 1}, {"n_heads": 6}],
    "n_kv_heads": [{"n_kv_heads": 1}, {"n_kv_heads": 2}],
    "head_dim": [{"head_dim": 5}, {"head_dim": 8, "n_kv_heads": 2, "positions": "rotary"}],
    "attention_scale": [{"attention_scale": 1.0}, {"attention_scale": 0.1}],
    "scale_by_depth": [{"scale_by_depth": True}, {"scale_by_depth": True, "attention_scale": 1.0}],
    "qkv_bias": [{"qkv_bias": False}],
    "out_bias": [{"out_bias": False}],
    "qk_norm": [
        {"qk_norm": True},
        {"qk_norm": True, "norm": "rms", "positions": "rotary", "head_dim": 4, "n_kv_heads": 2},
    ],
    "qk_norm_over": [
        {"qk_norm": True, "qk_norm_over": "all_heads", "norm": norm, "n_kv_heads": 2} | more
        for norm, more in (("rms", ROTARY), ("layer", {}))
    ],
    "clip_qkv": [{"clip_qkv": 0.4}, {"clip_qkv": 0.6, "qk_norm": True, "n_kv_heads": 2}],
    "attention_softcap": [
        {"attention_softcap": 0.7},
        {"attention_softcap": 2.0, "n_kv_heads": 2, "sliding_window": 3} | RELATIVE,
        DISENTANGLED | {"attention_softcap": 0.5},
    ],
    "sliding_window": [{"sliding_window": 1}, {"sliding_window": 3}],
    "global_layers": [
        {"sliding_window": 2, "global_layers": (1,)},
        {"sliding_window": 2, "global_layers": (0,), "share_layers": True, "positions": "alibi"},
        {"sliding_window": 2, "global_layers": (0,)} | RELATIVE | {"share_relative_bias": False},
        DISENTANGLED | {"sliding_window": 2, "global_layers": (0,)},
    ],
    "activation": [{"activation": name} for name in ("relu", "gelu", "gelu_tanh", "silu")],
    "gated": [{"gated": True, "activation": name} for name in ("relu", "gelu", "gelu_tanh", "silu")],
    "ffn_bias": [{"ffn_bias": False}, {"ffn_bias": False, "gated": True}],
    "n_experts": [EXPERTS, EXPERTS | {"gated": True, "activation": "silu"}, EXPERTS | {"n_experts": 2}],
    "experts_per_token": [EXPERTS | {"experts_per_token": n} for n in (1, 3, 4)],
    "expert_d_ff": [EXPERTS | {"expert_d_ff": 5, "ffn_bias": False}],
    "shared_expert_d_ff": [EXPERTS | {"shared_expert_d_ff": 6, "gated": True}],
    "normalize_expert_weights": [
        EXPERTS | {"normalize_expert_weights": False},
        EXPERTS | {"normalize_expert_weights": False, "shared_expert_d_ff": 6, "norm_placement": "pre"},
    ],
    "dense_layers": [EXPERTS | {"dense_layers": (0,)}, EXPERTS | {"dense_layers": (1,), "expert_d_ff": 3}],
    "norm": [{"norm": name} for name in ("layer", "rms", "offset_rms", "mean_std")]
    + [{"norm": "offset_rms", "qk_norm": True, "embedding_norm": True}],
    "norm_placement": [
        {"norm_placement": place, "norm": name} for place in ("pre", "post") for name in ("layer", "rms", "mean_std")
    ]
    + [
        {"norm_placement": place, "norm": name, "residual_multiplier": 0.5}
        for place in ("sandwich", "output")
        for name in ("layer", "offset_rms")
    ],
    "norm_eps": [{"norm_eps": 0.1, "norm": name} for name in ("layer", "rms", "mean_std")],
    "norm_bias": [
        {"norm_bias": False, "qk_norm": True, "embedding_norm": True},
        {"norm_bias": False, "norm": "rms"},
        {"norm_bias": False, "norm_placement": "pre", "head": "language_model", "head_transform": True},
    ],
    "norm_weight": [
        {"norm_weight": False, "norm_bias": False, "qk_norm": True, "embedding_norm": True},
        {"norm_weight": False, "norm": "rms", "norm_placement": "sandwich"},
    ],
    "first_norm": [{"first_norm": False, "norm_placement": "pre", "kinds": ["encoder"]}],
    "final_norm": [{"final_norm": True, "norm_placement": "post"}, {"final_norm": False, "norm_placement": "pre"}],
    "positions": [{"positions": name} for name in ("sinusoidal", "learned", "alibi", "none")]
    + [DISENTANGLED, RELATIVE, {"positions": "rotary", "head_dim": 4}, {"positions": "alibi", "n_heads": 6}],
    "sinusoid_halves": [{"sinusoid_halves": True}, {"sinusoid_halves": True, "d_model": 15, "n_heads": 3}],
    "sinusoid_full_range": [
        {"sinusoid_full_range": True, "sinusoid_halves": True},
        {"sinusoid_full_range": True, "position_offset": 2},
    ],
    "position_offset": [{"positions": "learned", "position_offset": 2}, {"position_offset": 3}],
    "rope_theta": [{"positions": "rotary", "head_dim": 4, "rope_theta": 50.0}],
    "local_rope_theta": [
        one | {"local_rope_theta": 30.0, "sliding_window": 3, "global_layers": (1,)}
        for one in (ROTARY, YARN, LONG, ROTARY | {"rope_width": 4})
    ],
    "unrotated_layers": [
        ROTARY | {"unrotated_layers": (0,)},
        ROTARY | {"unrotated_layers": (1,), "sliding_window": 3, "global_layers": (1,), "local_rope_theta": 50.0},
    ],
    "rope_width": [ROTARY | {"rope_width": 2}, ROTARY | {"rope_width": 6}, LLAMA3 | {"rope_width": 4}],
    "rope_scaling": [LLAMA3, YARN, LONG, *(ROTARY | {"rope_scaling": kind} for kind in ("linear", "dynamic", "none"))],
    "rope_factor": [one | {"rope_factor": 3.0} for one in (LLAMA3, YARN, LONG, ROTARY | {"rope_scaling": "linear"})],
    "rope_original_len": [one | {"rope_original_len": 20} for one in (LLAMA3, YARN, LONG)],
    "rope_low_rotations": [one | {"rope_low_rotations": 0.5} for one in (LLAMA3, YARN)],
    "rope_high_rotations": [one | {"rope_high_rotations": 2.0} for one in (LLAMA3, YARN)],
    "rope_attention_factor": [one | {"rope_attention_factor": 0.7} for one in (YARN, LONG)],
    "rope_short_divisors": [LONG | {"max_len": 8, "rope_short_divisors": (1.0, 7.0, 2.0, 9.0)}],
    "rope_long_divisors": [LONG | {"rope_long_divisors": (1.0, 7.0, 2.0, 9.0)}],
    "relative_buckets": [RELATIVE | {"relative_buckets": 4}, DISENTANGLED | {"relative_buckets": 4}],
    "relative_max_distance": [
        RELATIVE | {"relative_max_distance": 6},
        DISENTANGLED | {"relative_max_distance": 6},
        DISENTANGLED | {"relative_max_distance": 7, "relative_buckets": 6, "norm": "rms", "attention_scale": 0.5},
    ],
    "relative_log": [DISENTANGLED | {"relative_log": False, "relative_buckets": n} for n in (4, 12)],
    "relative_norm": [DISENTANGLED | {"relative_norm": False}],
    "share_relative_proj": [
        DISENTANGLED | {"share_relative_proj": False},
        DISENTANGLED | {"share_relative_proj": False, "key_bias": False, "relative_norm": False, "relative_log": False},
    ],
    "key_bias": [{"key_bias": False}, DISENTANGLED | {"key_bias": False}],
    "conv_kernel": [{"conv_kernel": n, "kinds": ["encoder"]} for n in (1, 3, 5)] + [DISENTANGLED | {"conv_kernel": 3}],
    "conv_activation": [
        {"conv_kernel": 3, "conv_activation": name, "kinds": ["encoder"]}
        for name in ("relu", "gelu", "gelu_tanh", "silu", "identity")
    ],
    "relative_bias": [
        RELATIVE | {"positions": name, "relative_bias": True, "head_dim": 4} for name in ("learned", "rotary", "none")
    ],
    "share_relative_bias": [
        RELATIVE | {"share_relative_bias": False},
        RELATIVE | {"share_relative_bias": False, "share_layers": True},
    ],
    "scale_embeddings": [{"scale_embeddings": True}, {"scale_embeddings": True} | NARROW],
    "embedding_multiplier": [{"embedding_multiplier": 3.0}, {"embedding_multiplier": 0.5} | NARROW],
    "residual_multiplier": [{"residual_multiplier": 0.3, "norm_placement": place} for place in ("pre", "post")],
    "parallel_ffn": [
        {"parallel_ffn": form, "norm_placement": "pre", "kinds": ["encoder", "decoder"]} | more
        for form in ("none", "two_norms", "one_norm")
        for more in ({"norm": "rms", "residual_multiplier": 0.3}, ROTARY | {"rope_width": 4, "n_kv_heads": 1})
    ]
    + [EXPERTS | {"parallel_ffn": "one_norm", "norm_placement": "pre"}],
    "output_multiplier": [
        {"head": "language_model", "output_multiplier": 0.2},
        {"head": "language_model", "output_multiplier": 0.2, "scale_output": True},
        CLASSES | {"output_multiplier": 0.2},
    ],
    "output_softcap": [
        {"head": "language_model", "output_softcap": 0.8},
        {"head": "language_model", "output_softcap": 2.0, "tie": "output", "output_multiplier": 0.5},
        CLASSES | {"output_softcap": 0.8},
    ],
    "token_types": [{"token_types": 3, "kinds": ["encoder", "decoder"]}],
    "embedding_norm": [{"embedding_norm": True}, {"embedding_norm": True} | NARROW],
    "embedding_width": [NARROW, NARROW | {"positions": "learned"}, {"embedding_width": 12}],
    "tie": [
        {"tie": "output", "head": "language_model"},
        {"tie": "output", "head": "language_model", "scale_embeddings": True, "output_bias": False},
        ONE_VOCABULARY | {"tie": "embeddings", "kinds": ["encoder_decoder"]},
        ONE_VOCABULARY | {"tie": "all", "kinds": ["encoder_decoder"]},
        ONE_VOCABULARY | {"tie": "all", "head_transform": True, "kinds": ["encoder_decoder"]} | NARROW,
    ],
    "share_layers": [{"share_layers": True}, {"share_layers": True} | RELATIVE, EXPERTS | {"share_layers": True}],
    "head": [
        *({"head": name} for name in ("none", "language_model", "span", "embedding")),
        TOKENS,
        CLASSES,
    ],
    "n_labels": [CLASSES | {"n_labels": 5}],
    "head_activation": [
        {"head": "language_model", "head_transform": True, "activation": "relu", "head_activation": "gelu"},
        *(CLASSES | {"head_transform": True, "head_activation": name} for name in ("gelu", "tanh", "identity")),
    ],
    "head_norm": [
        *({**start, "head_transform": True, "head_norm": True} for start in (CLASSES, TOKENS)),
        {"head": "language_model", "head_transform": True, "head_norm": False},
    ],
    "head_bias": [
        {**start, "head_transform": True, "head_bias": False}
        for start in (CLASSES, TOKENS, {"head": "language_model"}, {"head": "embedding"})
    ],
    "head_width": [{"head": "embedding", "head_transform": True, "head_width": 5}],
    "unit_length": [{"head": "embedding", "unit_length": False, "pooling": "mean"}],
    "head_transform": [
        {"head": "language_model", "head_transform": True, "activation": "gelu"},
        {"head": "language_model", "head_transform": True, "tie": "output"} | NARROW,
        CLASSES | {"head_transform": True},
        TOKENS | {"head_transform": True},
        {"head": "span", "head_transform": True},
        {"head": "embedding", "head_transform": True},
    ],
    "pooling": [
        start | {"pooling": pooling}
        for pooling in ("first", "last", "mean", "max", "mean_sqrt", "weighted_mean")
        for start in (CLASSES, {"head": "embedding"})
    ],
    "output_bias": [{"head": "language_model", "output_bias": False}],
    "scale_output": [{"head": "language_model", "scale_output": True}],
}
CASES = [
    pytest.param(kind, {k: v for k, v in setting.items() if k != "kinds"}, id=f"{kind}-{field}-{number}")
    for field, settings in OPTIONS.items()
    for number, setting in enumerate(settings)
    for kind in setting.get("kinds", KINDS)
]


@pytest.mark.parametrize(("kind", "setting"), CASES)
def test_option_agrees_with_the_oracle(kind, setting):
    assert_oracle_agrees(replace(KINDS[kind], **setting))


def test_every_config_field_is_handled_by_the_oracle_or_named_as_exempt():
    all_fields = {field.name: field.default for field in fields(ModelConfig)}
    handled = {field.name: field.default for field in fields(reference.Config)}
    assert set(all_fields) == set(handled) | set(EXEMPT)
    assert not set(handled) & set(EXEMPT)
    assert {name: all_fields[name] for name in handled} == handled, "the twins' defaults differ"
    assert set(OPTIONS) == set(handled), "an option the oracle handles is not exercised here"


def test_every_value_of_every_choice_is_exercised():
    from typing import Literal, get_args, get_origin, get_type_hints

    for name, hint in get_type_hints(ModelConfig).items():
        if get_origin(hint) is Literal and name in OPTIONS:
            seen = {setting.get(name) for setting in OPTIONS[name]} | {getattr(ENCODER, name)}
            assert set(get_args(hint)) <= seen, name


@pytest.mark.parametrize("name", [name for name in PRESETS if name.startswith("tiny-")])
def test_preset_agrees_with_the_oracle(name):
    assert_oracle_agrees(preset(name))


@pytest.mark.parametrize("name", ["tiny-bert-base", "tiny-gpt2", "tiny-llama"])
def test_packed_segments_agree_with_the_oracle(name):
    assert_oracle_agrees(preset(name), segments=True, padding=False)
