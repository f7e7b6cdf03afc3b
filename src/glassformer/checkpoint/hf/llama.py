"""HF's Llama (SmolLM included), Mistral, Qwen2, Qwen3, Phi-3, StableLM, Granite, Gemma 1 and Cohere.

They differ in biases, norms, sliding windows, factors, parallel layers, and in the layout of their tensors.

`table` maps our parameter names to HF's tensor names; `name_tables.py` applies it in both directions.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal, cast

from glassformer.checkpoint.hf.equivalent_forms import FOLD_EMBEDDING_SCALE
from glassformer.checkpoint.hf.name_tables import Family, NameRule, layer_rules, module_rules
from glassformer.checkpoint.hf.rotary_values import read_rotary, write_rotary
from glassformer.checkpoint.hf.row_orders import RotaryPairs
from glassformer.checkpoint.hf.values import (
    MAX_INT,
    TO_HF_ACTIVATION,
    UnsupportedModelError,
    has_lm_head,
    read_activation,
    read_bool,
    read_float,
    read_int,
    read_n_heads,
    read_value,
    require,
    shown,
)
from glassformer.models import ModelConfig, preset

NAMES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3", "phi3": "Phi3"}
NAMES |= {"stablelm": "StableLm", "granite": "Granite", "gemma": "Gemma", "cohere": "Cohere"}
KV_HEADS = {"mistral": 8, "qwen2": 32, "qwen3": 32, "stablelm": 32, "gemma": 16}
"""HF's default of `num_key_value_heads` if the key is absent. A null value means as many as query heads."""
WITH_ATTENTION_BIAS = ("llama", "qwen3", "granite", "gemma", "cohere")
NORMS: dict[str, Literal["layer", "offset_rms"]] = {"stablelm": "layer", "gemma": "offset_rms", "cohere": "layer"}
ROTATED_PART = {"phi3": 1.0, "stablelm": 0.25}
"""HF's default of `partial_rotary_factor`, for families that read it."""
EPS = {"stablelm": ("layer_norm_eps",), "cohere": ("layer_norm_eps",)}
DEFAULT_EPS = {"stablelm": 1e-5, "phi3": 1e-5, "cohere": 1e-5}
THETA = {"cohere": 500000.0}
"""HF's default of the base of rotary positions, if it is not 10,000."""
TIED = ("gemma", "cohere")
"""Families that tie the output to the embeddings unless `config.json` says otherwise."""


def read_config(values: Mapping[str, Any], names: frozenset[str]) -> ModelConfig:
    """Convert HF's `config.json` values to a `ModelConfig`. These families do not use `names`, the stored tensors."""
    kind = values["model_type"]
    require(values, "pretraining_tp", 1)
    attention_bias = kind in WITH_ATTENTION_BIAS and read_bool(values, "attention_bias", default=False)
    width = read_int(values, "hidden_size")
    head_dim = read_int(values, "head_dim", default={"qwen3": 128, "gemma": 256}.get(kind))
    if kind == "phi3":
        values = {"original_max_position_embeddings": 4096, **values}
    n_heads = read_n_heads(values, "num_attention_heads", width=width if head_dim is None else MAX_INT)
    kv_heads = n_heads if "num_key_value_heads" in values else KV_HEADS.get(kind, n_heads)
    is_tied = read_bool(values, "tie_word_embeddings", default=kind in TIED)
    config = replace(
        preset("llama"),
        vocab_size=read_int(values, "vocab_size"),
        d_model=width,
        d_ff=read_int(values, "intermediate_size"),
        n_decoder_layers=read_int(values, "num_hidden_layers"),
        n_heads=n_heads,
        n_kv_heads=read_int(values, "num_key_value_heads", default=kv_heads),
        head_dim=None if head_dim is None or head_dim * n_heads == width else head_dim,
        activation=read_activation(values, "hidden_act", default="gelu_new" if kind == "gemma" else "silu"),
        norm=NORMS.get(kind, "rms"),
        norm_eps=read_float(values, *EPS.get(kind, ("rms_norm_eps",)), default=DEFAULT_EPS.get(kind, 1e-6)),
        **read_rotary(
            values,
            width // n_heads if head_dim is None else head_dim,
            part=ROTATED_PART.get(kind),
            theta=THETA.get(kind, 10000.0),
        ),
        sliding_window=_window(values),
        qkv_bias=True if kind == "qwen2" else attention_bias,
        out_bias=False if kind == "qwen2" else attention_bias,
        ffn_bias=kind in ("llama", "granite") and read_bool(values, "mlp_bias", default=False),
        qk_norm=kind == "qwen3",
        attention_dropout=read_float(values, "attention_dropout", default=0.0),
        tie="output" if is_tied else "none",
        scale_embeddings=kind == "gemma",
    )
    config = _with_own_settings(values, config)
    with_lm_head = has_lm_head(values, f"{NAMES[kind]}Model", f"{NAMES[kind]}ForCausalLM")
    return config if with_lm_head else config.with_head("none")


def _with_own_settings(values: Mapping[str, Any], config: ModelConfig) -> ModelConfig:
    """Return the config with the settings that one family alone has."""
    kind = values["model_type"]
    if kind == "stablelm":
        require(values, "qk_layernorm", False)
        return replace(
            config,
            qkv_bias=read_bool(values, "use_qkv_bias", default=False),
            parallel_ffn="one_norm" if read_bool(values, "use_parallel_residual", default=False) else "none",
            dropout=read_float(values, "hidden_dropout", default=0.0),
        )
    if kind == "cohere":
        require(values, "use_qk_norm", False)
        factor = read_float(values, "logit_scale", default=0.0625)
        return replace(config, norm_bias=False, parallel_ffn="one_norm", output_multiplier=factor)
    if kind == "phi3":
        return replace(
            config,
            dropout=read_float(values, "resid_pdrop", default=0.0),
            embedding_dropout=read_float(values, "embd_pdrop", default=0.0),
        )
    if kind == "granite":
        factor = read_float(values, "embedding_multiplier", default=1.0)
        return replace(
            config,
            embedding_multiplier=None if factor == 1.0 else factor,
            residual_multiplier=read_float(values, "residual_multiplier", default=1.0),
            attention_scale=read_float(values, "attention_multiplier", default=1.0),
            output_multiplier=1.0 / (read_float(values, "logits_scaling", default=1.0) or 1.0),
        )
    if kind == "gemma":
        require(values, "use_bidirectional_attention", False)
    return config


def _window(values: Mapping[str, Any]) -> int | None:
    """Return the length of the sliding window that all layers have, or None if no layer has a window.

    Raises UnsupportedModelError if only some layers have a window.
    """
    kind = values["model_type"]
    if kind in ("llama", "stablelm", "granite", "gemma", "cohere"):
        return None
    if kind == "phi3":
        return cast("int | None", read_int(values, "sliding_window", default=None))
    # HF's default if the key is absent; null means no window.
    window: int | None = read_int(values, "sliding_window", default=None if "sliding_window" in values else 4096)
    if kind == "mistral":
        return window
    if not read_bool(values, "use_sliding_window", default=False):
        window = None
    n_layers, n_full = read_int(values, "num_hidden_layers"), read_int(values, "max_window_layers", default=28)
    n_full = n_layers if window is None else min(max(n_full, 0), n_layers)
    usual = {"full_attention"} if n_full else set()
    kinds = read_value(values, "layer_types", default=[*usual, *(["sliding_attention"] if n_full < n_layers else [])])
    if not isinstance(kinds, list):
        raise ValueError(f"config.json has layer_types={shown(kinds)}: expected a list, one for each layer")
    if all(kind == "full_attention" for kind in kinds):
        return None
    if window is None or any(kind != "sliding_attention" for kind in kinds):
        raise UnsupportedModelError(
            f"config.json has layer_types={shown(kinds)}, sliding_window={shown(window)} (None without "
            "use_sliding_window), a mixture of layers with and without a window: expected one kind"
        )
    return window


def write_config(kind: str, config: ModelConfig) -> dict[str, Any]:
    """Convert a `ModelConfig` to the `config.json` values of the family with `model_type` `kind`."""
    values = {
        "architectures": [NAMES[kind] + ("Model" if config.head == "none" else "ForCausalLM")],
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "intermediate_size": config.d_ff,
        "num_hidden_layers": config.n_decoder_layers,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_size,
        "hidden_act": TO_HF_ACTIVATION[config.activation],
        EPS.get(kind, ("rms_norm_eps",))[0]: config.norm_eps,
        **write_rotary(config, has_part=kind in ROTATED_PART),
        "attention_dropout": config.attention_dropout,
        "tie_word_embeddings": config.ties_output,
    }
    if kind in WITH_ATTENTION_BIAS:
        values["attention_bias"] = config.out_bias
    if kind in ("llama", "granite"):
        values["mlp_bias"] = config.ffn_bias
    if kind == "stablelm":
        values |= {"use_qkv_bias": config.qkv_bias, "hidden_dropout": config.dropout}
        values["use_parallel_residual"] = config.parallel_ffn != "none"
    if kind == "cohere":
        values["logit_scale"] = config.output_multiplier
    if kind == "granite":
        values |= {
            "embedding_multiplier": config.embedding_factor,
            "residual_multiplier": config.residual_multiplier,
            "attention_multiplier": config.scale,
            "logits_scaling": _inverse(config.output_multiplier),
        }
    if kind == "phi3":
        original = config.rope_original_len if config.rope_scaling == "longrope" else config.max_len
        values |= {"resid_pdrop": config.dropout, "embd_pdrop": config.embedding_dropout}
        values |= {"original_max_position_embeddings": original, "pad_token_id": None}
    if kind in ("mistral", "phi3"):
        values["sliding_window"] = config.sliding_window
    if kind in ("qwen2", "qwen3"):
        has_window = config.sliding_window is not None
        values |= {"use_sliding_window": has_window, "sliding_window": config.sliding_window, "max_window_layers": 0}
        values["layer_types"] = ["sliding_attention" if has_window else "full_attention"] * config.n_decoder_layers
    return values


def _inverse(factor: float) -> float:
    """Return 1 / factor, as a short decimal if that has the same inverse."""
    return next((x for x in (round(1.0 / factor, 6), 1.0 / factor) if x and 1.0 / x == factor), 1.0 / factor)


def table(config: ModelConfig, *, is_fused: bool = False, in_pairs: bool = False) -> list[NameRule]:
    """Return the rules that map HF's tensor names to our parameter names, for the whole model and each layer.

    With `is_fused`, as in Phi-3, one tensor holds the query, key and value projections, and one both inputs of the
    feed-forward network. With `in_pairs`, as in Cohere, rotary positions turn neighboring features.
    """
    pairs = {
        "self_attn.q_proj": "self_attn.q_proj",
        "self_attn.k_proj": "self_attn.k_proj",
        "self_attn.v_proj": "self_attn.v_proj",
        "self_attn.out_proj": "self_attn.o_proj",
        "self_attn.q_norm": "self_attn.q_norm",
        "self_attn.k_norm": "self_attn.k_norm",
        "ffn.gate_proj": "mlp.gate_proj",
        "ffn.up_proj": "mlp.up_proj",
        "ffn.down_proj": "mlp.down_proj",
        "self_attn_sublayer.norm": "input_layernorm",
        "ffn_sublayer.norm": "post_attention_layernorm",
    }
    fused: list[NameRule] = []
    groups: dict[str, tuple[str, ...]] = {}
    if is_fused:
        groups["self_attn.qkv_proj"] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        groups["mlp.gate_up_proj"] = ("ffn.gate_proj", "ffn.up_proj")
        for name in [name for names in groups.values() for name in names]:
            del pairs[name]
        fused = [
            NameRule(f"model.layers.{i}.{theirs}.{part}", tuple(f"decoder.layers.{i}.{name}.{part}" for name in ours))
            for i in range(config.n_decoder_layers)
            for theirs, ours in groups.items()
            for part in ("weight", "bias")
        ]
    layers = "decoder.layers", "model.layers", config.n_decoder_layers
    turned: list[NameRule] = []
    if in_pairs:
        names = {name: pairs.pop(name) for name in ("self_attn.q_proj", "self_attn.k_proj")}
        order = RotaryPairs(config.head_size, config.rope_size)
        turned = [replace(rule, order=order) for rule in layer_rules(*layers, names)]
    return [
        *fused,
        *turned,
        *module_rules(
            {"embeddings.tokens": "model.embed_tokens", "decoder.norm": "model.norm", "head.out_proj": "lm_head"}
        ),
        *layer_rules(*layers, pairs),
    ]


def _family(kind: str) -> Family:
    return Family(
        model_type=kind,
        kind="decoder",
        prefix="model.",
        read_config=read_config,
        write_config=lambda config: write_config(kind, config),
        table=partial(table, is_fused=kind == "phi3", in_pairs=kind == "cohere"),
        copies=[("lm_head.weight", "model.embed_tokens.weight")],
        rewrites=[] if kind in ("gemma", "granite") else [FOLD_EMBEDDING_SCALE],
        ignored=r"rotary_emb\.inv_freq$",
    )


FAMILIES = [_family(kind) for kind in NAMES]
