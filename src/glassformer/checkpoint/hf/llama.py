"""HF's Llama (SmolLM included) and the families with its names: Mistral, Qwen, Phi-3, Gemma, OLMo, Cohere and others.

They differ in biases, norms, sliding windows, factors, parallel layers, and in the layout of their tensors;
`llama_variants.py` lists their differences, and `expert_decoders.py` those of Mixtral and others with experts.

`table` maps our parameter names to HF's tensor names; `name_tables.py` applies it in both directions.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from glassformer.checkpoint.hf.equivalent_forms import FOLD_EMBEDDING_SCALE
from glassformer.checkpoint.hf.expert_decoders import EXPERT_VARIANTS, expert_names
from glassformer.checkpoint.hf.layer_kinds import read_two_rotaries, write_two_rotaries
from glassformer.checkpoint.hf.llama_variants import VARIANTS as DENSE_VARIANTS
from glassformer.checkpoint.hf.llama_variants import Variant
from glassformer.checkpoint.hf.name_tables import Family, NameRule, layer_rules, module_rules
from glassformer.checkpoint.hf.rotary_values import read_rotary, write_rotary
from glassformer.checkpoint.hf.row_orders import RotaryPairs
from glassformer.checkpoint.hf.values import (
    MAX_INT,
    TO_HF_ACTIVATION,
    has_lm_head,
    read_activation,
    read_bool,
    read_float,
    read_int,
    read_n_heads,
    require,
)
from glassformer.models import ModelConfig, preset

VARIANTS = DENSE_VARIANTS | EXPERT_VARIANTS

NORM_NAMES = {
    "pre": {"self_attn_sublayer.norm": "input_layernorm", "ffn_sublayer.norm": "post_attention_layernorm"},
    "output": {
        "self_attn_sublayer.norm": "post_attention_layernorm",
        "ffn_sublayer.norm": "post_feedforward_layernorm",
    },
    "sandwich": {
        "self_attn_sublayer.norm": "input_layernorm",
        "self_attn_sublayer.post_norm": "post_attention_layernorm",
        "ffn_sublayer.norm": "pre_feedforward_layernorm",
        "ffn_sublayer.post_norm": "post_feedforward_layernorm",
    },
}
"""By placement of the norms: HF's names of the norms of a layer."""


def read_config(values: Mapping[str, Any], names: frozenset[str]) -> ModelConfig:
    """Convert HF's `config.json` values to a `ModelConfig`. These families do not use `names`, the stored tensors."""
    kind = values["model_type"]
    variant = VARIANTS[kind]
    require(values, "pretraining_tp", 1)
    attention_bias = variant.has_attention_bias and read_bool(values, "attention_bias", default=False)
    width = read_int(values, "hidden_size")
    head_dim = read_int(values, "head_dim", default=variant.head_dim)
    if kind == "phi3":
        values = {"original_max_position_embeddings": 4096, **values}
    n_heads = read_n_heads(values, "num_attention_heads", width=width if head_dim is None else MAX_INT)
    kv_heads = n_heads if "num_key_value_heads" in values else variant.kv_heads or n_heads
    base = replace(
        preset("llama"),
        norm=variant.norm,
        vocab_size=read_int(values, "vocab_size"),
        d_model=width,
        d_ff=read_int(values, "intermediate_size"),
        n_decoder_layers=read_int(values, "num_hidden_layers"),
        n_heads=n_heads,
        n_kv_heads=read_int(values, "num_key_value_heads", default=kv_heads),
        head_dim=None if head_dim is None or head_dim * n_heads == width else head_dim,
        activation=read_activation(values, variant.activation_key, default=variant.activation),
        norm_eps=variant.eps if variant.eps_key is None else read_float(values, variant.eps_key, default=variant.eps),
        qkv_bias=attention_bias,
        out_bias=attention_bias,
        ffn_bias=variant.has_ffn_bias and read_bool(values, "mlp_bias", default=False),
        attention_dropout=read_float(values, "attention_dropout", default=0.0),
        tie="output" if read_bool(values, "tie_word_embeddings", default=variant.is_tied) else "none",
        **_rotary_and_windows(values, variant, width // n_heads if head_dim is None else head_dim),
    )
    config = replace(base, **variant.fields(values))
    with_lm_head = has_lm_head(values, f"{variant.body or variant.name}Model", f"{variant.name}ForCausalLM")
    return config if with_lm_head else config.with_head("none")


def _rotary_and_windows(values: Mapping[str, Any], variant: Variant, head_dim: int) -> dict[str, Any]:
    windows = variant.windows(values)
    if variant.local_theta is None:
        rotary = read_rotary(values, head_dim, part=variant.rotated_part, theta=variant.theta)
    else:
        rotary = read_two_rotaries(values, head_dim, windows, theta=variant.theta, local_theta=variant.local_theta)
    return {**rotary, **windows.fields()}


def write_config(kind: str, config: ModelConfig) -> dict[str, Any]:
    """Convert a `ModelConfig` to the `config.json` values of the family with `model_type` `kind`."""
    variant = VARIANTS[kind]
    if variant.local_theta is None:
        rotary = write_rotary(config, has_part=variant.rotated_part is not None)
    else:
        rotary = write_two_rotaries(config)
    values = {
        "architectures": [
            f"{variant.body or variant.name}Model" if config.head == "none" else f"{variant.name}ForCausalLM"
        ],
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "intermediate_size": config.d_ff,
        "num_hidden_layers": config.n_decoder_layers,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_size,
        variant.activation_key: TO_HF_ACTIVATION[config.activation],
        **rotary,
        "attention_dropout": config.attention_dropout,
        "tie_word_embeddings": config.ties_output,
        **variant.writes_windows(config),
    }
    if variant.eps_key is not None:
        values[variant.eps_key] = config.norm_eps
    if variant.has_attention_bias:
        values["attention_bias"] = config.out_bias
    if variant.has_ffn_bias:
        values["mlp_bias"] = config.ffn_bias
    return {**values, **variant.values(config)}


def table(kind: str, config: ModelConfig, *, is_fused: bool = False, in_pairs: bool = False) -> list[NameRule]:
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
        **NORM_NAMES.get(config.norm_placement, {}),
        **(expert_names(kind, config.n_experts) if kind in EXPERT_VARIANTS else {}),
    }
    layers = "decoder.layers", "model.layers", config.n_decoder_layers
    special: list[NameRule] = []
    if is_fused:
        groups = {
            "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            "mlp.gate_up_proj": ("ffn.gate_proj", "ffn.up_proj"),
        }
        for name in [name for names in groups.values() for name in names]:
            del pairs[name]
        special = [
            NameRule(f"model.layers.{i}.{theirs}.{part}", tuple(f"decoder.layers.{i}.{name}.{part}" for name in ours))
            for i in range(config.n_decoder_layers)
            for theirs, ours in groups.items()
            for part in ("weight", "bias")
        ]
    if in_pairs:
        turned = {name: pairs.pop(name) for name in ("self_attn.q_proj", "self_attn.k_proj")}
        order = RotaryPairs(config.head_size, config.rope_size)
        special = [replace(rule, order=order) for rule in layer_rules(*layers, turned)]
    whole = {"embeddings.tokens": "model.embed_tokens", "decoder.norm": "model.norm", "head.out_proj": "lm_head"}
    return [*special, *module_rules(whole), *layer_rules(*layers, pairs)]


def _family(kind: str, variant: Variant) -> Family:
    return Family(
        model_type=kind,
        kind="decoder",
        prefix="model.",
        read_config=read_config,
        write_config=partial(write_config, kind),
        table=partial(table, kind, is_fused=variant.is_fused, in_pairs=variant.in_pairs),
        copies=[("lm_head.weight", "model.embed_tokens.weight")],
        rewrites=[FOLD_EMBEDDING_SCALE] if variant.folds_scale else [],
        ignored=r"rotary_emb\.inv_freq$",
    )


FAMILIES = [_family(kind, variant) for kind, variant in VARIANTS.items()]
