"""HF's GPT-NeoX (Pythia), GPT-J, Phi (1, 1.5 and 2) and Falcon: layers with parallel attention and feed-forward.

They differ in norms, biases, the order of rows in their matrices, and names. `Cohere` is in `llama.py`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from glassformer.checkpoint.hf.equivalent_forms import FOLD_EMBEDDING_SCALE
from glassformer.checkpoint.hf.name_tables import Family, NameRule, layer_rules, module_rules
from glassformer.checkpoint.hf.rotary_values import read_rotary, write_rotary
from glassformer.checkpoint.hf.row_orders import HeadGroups, RotaryPairs
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

QKV = tuple(f"self_attn.{letter}_proj" for letter in "qkv")
NORMS = {"self_attn_sublayer.norm": "input_layernorm", "ffn_sublayer.norm": "post_attention_layernorm"}


def read_neox(values: Mapping[str, Any], names: frozenset[str]) -> ModelConfig:
    """Convert GPT-NeoX's `config.json` values to a `ModelConfig`."""
    width, n_heads = _width_and_heads(values)
    has_bias = read_bool(values, "attention_bias", default=True)
    theta = read_float(values, "rotary_emb_base", default=10000.0)
    part = read_float(values, "rotary_pct", default=0.25)
    config = replace(
        preset("pythia"),
        **_sizes(values, width, n_heads),
        **read_rotary(values, width // n_heads, theta=theta, part=part),
        d_ff=read_int(values, "intermediate_size"),
        activation=read_activation(values, "hidden_act", default="gelu"),
        norm_eps=read_float(values, "layer_norm_eps", default=1e-5),
        parallel_ffn="two_norms" if read_bool(values, "use_parallel_residual", default=True) else "none",
        qkv_bias=has_bias,
        out_bias=has_bias,
        tie=_tie(values, default=False),
        dropout=read_float(values, "hidden_dropout", default=0.0),
        embedding_dropout=read_float(values, "hidden_dropout", default=0.0),
        attention_dropout=read_float(values, "attention_dropout", default=0.0),
    )
    return config if has_lm_head(values, "GPTNeoXModel", "GPTNeoXForCausalLM") else config.with_head("none")


def write_neox(config: ModelConfig) -> dict[str, Any]:
    """Convert a `ModelConfig` to GPT-NeoX's `config.json` values."""
    return {
        **_write_sizes(config, "GPTNeoX"),
        **write_rotary(config, has_part=True),
        "rotary_pct": config.rope_size / config.head_size,
        "rotary_emb_base": config.rope_theta,
        "intermediate_size": config.d_ff,
        "hidden_act": TO_HF_ACTIVATION[config.activation],
        "layer_norm_eps": config.norm_eps,
        "use_parallel_residual": config.parallel_ffn != "none",
        "attention_bias": config.out_bias,
        "hidden_dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
    }


def neox_table(config: ModelConfig) -> list[NameRule]:
    """Return the rules that map GPT-NeoX's tensor names to our parameter names."""
    layers = "gpt_neox.layers", config.n_decoder_layers
    pairs = {"self_attn.out_proj": "attention.dense", "ffn.up_proj": "mlp.dense_h_to_4h"}
    pairs |= {"ffn.down_proj": "mlp.dense_4h_to_h", **NORMS}
    whole = {"embeddings.tokens": "gpt_neox.embed_in", "decoder.norm": "gpt_neox.final_layer_norm"}
    return [
        *_fused_rules(*layers, "attention.query_key_value", HeadGroups(config.n_heads, config.head_size)),
        *module_rules({**whole, "head.out_proj": "embed_out"}),
        *layer_rules("decoder.layers", *layers, pairs),
    ]


def read_gptj(values: Mapping[str, Any], names: frozenset[str]) -> ModelConfig:
    """Convert GPT-J's `config.json` values to a `ModelConfig`."""
    width = read_int(values, "n_embd", "hidden_size", default=4096)
    n_heads = read_n_heads(values, "n_head", "num_attention_heads", width=width, default=16)
    rotated = read_int(values, "rotary_dim", default=64)
    config = replace(
        preset("gpt-j"),
        vocab_size=read_int(values, "vocab_size", default=50400),
        max_len=read_int(values, "n_positions", "max_position_embeddings", default=2048),
        d_model=width,
        n_heads=n_heads,
        n_decoder_layers=read_int(values, "n_layer", "num_hidden_layers", default=28),
        d_ff=read_int(values, "n_inner", default=4 * width),
        rope_width=None if rotated == width // n_heads else rotated,
        activation=read_activation(values, "activation_function", default="gelu_new"),
        norm_eps=read_float(values, "layer_norm_epsilon", default=1e-5),
        tie=_tie(values, default=False),
        dropout=read_float(values, "resid_pdrop", default=0.0),
        embedding_dropout=read_float(values, "embd_pdrop", default=0.0),
        attention_dropout=read_float(values, "attn_pdrop", default=0.0),
    )
    return config if has_lm_head(values, "GPTJModel", "GPTJForCausalLM") else config.with_head("none")


def write_gptj(config: ModelConfig) -> dict[str, Any]:
    """Convert a `ModelConfig` to GPT-J's `config.json` values."""
    return {
        "architectures": ["GPTJModel" if config.head == "none" else "GPTJForCausalLM"],
        "vocab_size": config.vocab_size,
        "n_positions": config.max_len,
        "n_embd": config.d_model,
        "n_layer": config.n_decoder_layers,
        "n_head": config.n_heads,
        "n_inner": config.d_ff,
        "rotary_dim": config.rope_size,
        "activation_function": TO_HF_ACTIVATION[config.activation],
        "layer_norm_epsilon": config.norm_eps,
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.embedding_dropout,
        "attn_pdrop": config.attention_dropout,
        "tie_word_embeddings": config.ties_output,
    }


def gptj_table(config: ModelConfig) -> list[NameRule]:
    """Return the rules that map GPT-J's tensor names to our parameter names."""
    layers = "decoder.layers", "transformer.h", config.n_decoder_layers
    turned = {f"self_attn.{letter}_proj": f"attn.{letter}_proj" for letter in "qk"}
    pairs = {"self_attn.v_proj": "attn.v_proj", "self_attn.out_proj": "attn.out_proj"}
    pairs |= {"ffn.up_proj": "mlp.fc_in", "ffn.down_proj": "mlp.fc_out", "self_attn_sublayer.norm": "ln_1"}
    order = RotaryPairs(config.head_size, config.rope_size)
    whole = {"embeddings.tokens": "transformer.wte", "decoder.norm": "transformer.ln_f", "head.out_proj": "lm_head"}
    return [
        *module_rules(whole),
        *(replace(rule, order=order) for rule in layer_rules(*layers, turned)),
        *layer_rules(*layers, pairs),
    ]


def read_phi(values: Mapping[str, Any], names: frozenset[str]) -> ModelConfig:
    """Convert Phi's `config.json` values to a `ModelConfig`."""
    width, n_heads = _width_and_heads(values)
    config = replace(
        preset("phi-2"),
        **_sizes(values, width, n_heads),
        **read_rotary(values, width // n_heads, part=0.5),
        d_ff=read_int(values, "intermediate_size"),
        n_kv_heads=read_int(values, "num_key_value_heads", default=n_heads),
        activation=read_activation(values, "hidden_act", default="gelu_new"),
        norm_eps=read_float(values, "layer_norm_eps", default=1e-5),
        qk_norm=read_bool(values, "qk_layernorm", default=False),
        tie=_tie(values, default=False),
        dropout=read_float(values, "resid_pdrop", default=0.0),
        embedding_dropout=read_float(values, "embd_pdrop", default=0.0),
        attention_dropout=read_float(values, "attention_dropout", default=0.0),
    )
    return config if has_lm_head(values, "PhiModel", "PhiForCausalLM") else config.with_head("none")


def write_phi(config: ModelConfig) -> dict[str, Any]:
    """Convert a `ModelConfig` to Phi's `config.json` values."""
    return {
        **_write_sizes(config, "Phi"),
        **write_rotary(config, has_part=True),
        "intermediate_size": config.d_ff,
        "num_key_value_heads": config.kv_heads,
        "hidden_act": TO_HF_ACTIVATION[config.activation],
        "layer_norm_eps": config.norm_eps,
        "qk_layernorm": config.qk_norm,
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.embedding_dropout,
        "attention_dropout": config.attention_dropout,
        "pad_token_id": None,
    }


def phi_table(config: ModelConfig) -> list[NameRule]:
    """Return the rules that map Phi's tensor names to our parameter names."""
    pairs = {name: name for name in QKV} | {"self_attn.out_proj": "self_attn.dense"}
    pairs |= {"self_attn.q_norm": "self_attn.q_layernorm", "self_attn.k_norm": "self_attn.k_layernorm"}
    pairs |= {"ffn.up_proj": "mlp.fc1", "ffn.down_proj": "mlp.fc2", "self_attn_sublayer.norm": "input_layernorm"}
    whole = {"embeddings.tokens": "model.embed_tokens", "decoder.norm": "model.final_layernorm"}
    return [
        *module_rules({**whole, "head.out_proj": "lm_head"}),
        *layer_rules("decoder.layers", "model.layers", config.n_decoder_layers, pairs),
    ]


def read_falcon(values: Mapping[str, Any], names: frozenset[str]) -> ModelConfig:
    """Convert Falcon's `config.json` values to a `ModelConfig`."""
    width, n_heads = _width_and_heads(values)
    require(values, "alibi", False)
    is_new = read_bool(values, "new_decoder_architecture", default=False)
    is_parallel = read_bool(values, "parallel_attn", default=True)
    require(values, "num_ln_in_parallel_attn", *((1, 2) if is_new else (1,)))
    if is_new:
        require(values, "parallel_attn", True)
        n_kv_heads = read_int(values, "num_kv_heads", default=n_heads)
    else:
        n_kv_heads = 1 if read_bool(values, "multi_query", default=True) else n_heads
    has_two = is_new and read_int(values, "num_ln_in_parallel_attn", default=2) == 2
    has_bias = read_bool(values, "bias", default=False)
    config = replace(
        preset("falcon-7b"),
        **_sizes(values, width, n_heads),
        **read_rotary(values, width // n_heads),
        d_ff=read_int(values, "ffn_hidden_size", default=min(4 * width, MAX_INT)),
        n_kv_heads=n_kv_heads,
        activation=read_activation(values, "activation", default="gelu"),
        norm_eps=read_float(values, "layer_norm_epsilon", default=1e-5),
        parallel_ffn=("two_norms" if has_two else "one_norm") if is_parallel else "none",
        qkv_bias=has_bias,
        out_bias=has_bias,
        ffn_bias=has_bias,
        tie=_tie(values, default=True),
        dropout=read_float(values, "hidden_dropout", default=0.0),
        attention_dropout=read_float(values, "attention_dropout", default=0.0),
    )
    return config if has_lm_head(values, "FalconModel", "FalconForCausalLM") else config.with_head("none")


def write_falcon(config: ModelConfig) -> dict[str, Any]:
    """Convert a `ModelConfig` to Falcon's `config.json` values."""
    is_grouped = config.kv_heads not in (1, config.n_heads)
    is_new = config.parallel_ffn == "two_norms" or (config.parallel_ffn == "one_norm" and is_grouped)
    return {
        **_write_sizes(config, "Falcon"),
        **write_rotary(config),
        "ffn_hidden_size": config.d_ff,
        "new_decoder_architecture": is_new,
        "parallel_attn": config.parallel_ffn != "none",
        "multi_query": config.kv_heads == 1,
        "num_kv_heads": config.kv_heads if is_new else config.n_heads,
        "num_ln_in_parallel_attn": 2 if config.parallel_ffn == "two_norms" else 1,
        "activation": TO_HF_ACTIVATION[config.activation],
        "layer_norm_epsilon": config.norm_eps,
        "bias": config.out_bias,
        "alibi": False,
        "hidden_dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
    }


def falcon_table(config: ModelConfig) -> list[NameRule]:
    """Return the rules that map Falcon's tensor names to our parameter names."""
    layers = "transformer.h", config.n_decoder_layers
    norms = {"self_attn_sublayer.norm": "ln_attn", "ffn_sublayer.norm": "ln_mlp"}
    pairs = {"self_attn.out_proj": "self_attention.dense", "ffn.up_proj": "mlp.dense_h_to_4h"}
    pairs |= {"ffn.down_proj": "mlp.dense_4h_to_h", **(norms if config.parallel_ffn == "two_norms" else NORMS)}
    whole = {"embeddings.tokens": "transformer.word_embeddings", "decoder.norm": "transformer.ln_f"}
    return [
        *_fused_rules(*layers, "self_attention.query_key_value", HeadGroups(config.kv_heads, config.head_size)),
        *module_rules({**whole, "head.out_proj": "lm_head"}),
        *layer_rules("decoder.layers", *layers, pairs),
    ]


def _width_and_heads(values: Mapping[str, Any]) -> tuple[int, int]:
    width = read_int(values, "hidden_size")
    n_heads = read_n_heads(values, "num_attention_heads", width=width)
    require(values, "head_dim", width // n_heads)
    return width, n_heads


def _sizes(values: Mapping[str, Any], width: int, n_heads: int) -> dict[str, Any]:
    return {
        "vocab_size": read_int(values, "vocab_size"),
        "d_model": width,
        "n_heads": n_heads,
        "n_decoder_layers": read_int(values, "num_hidden_layers"),
    }


def _tie(values: Mapping[str, Any], *, default: bool) -> Literal["output", "none"]:
    return "output" if read_bool(values, "tie_word_embeddings", default=default) else "none"


def _write_sizes(config: ModelConfig, prefix: str) -> dict[str, Any]:
    return {
        "architectures": [prefix + ("Model" if config.head == "none" else "ForCausalLM")],
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "num_hidden_layers": config.n_decoder_layers,
        "num_attention_heads": config.n_heads,
        "tie_word_embeddings": config.ties_output,
    }


def _fused_rules(stack: str, n_layers: int, name: str, order: HeadGroups) -> list[NameRule]:
    """Return the rules of one tensor for Q, K and V in every layer."""
    return [
        NameRule(f"{stack}.{i}.{name}.{part}", tuple(f"decoder.layers.{i}.{x}.{part}" for x in QKV), order=order)
        for i in range(n_layers)
        for part in ("weight", "bias")
    ]


FAMILIES = [
    Family(
        model_type=model_type,
        kind="decoder",
        prefix=prefix,
        read_config=read,
        write_config=write,
        table=table,
        copies=[(head, f"{prefix}{tokens}.weight")],
        rewrites=[FOLD_EMBEDDING_SCALE],
        ignored=r"rotary_emb\.inv_freq$|(attention|attn)\.(masked_)?bias$",  # the causal mask
    )
    for model_type, prefix, read, write, table, head, tokens in (
        ("gpt_neox", "gpt_neox.", read_neox, write_neox, neox_table, "embed_out.weight", "embed_in"),
        ("gptj", "transformer.", read_gptj, write_gptj, gptj_table, "lm_head.weight", "wte"),
        ("phi", "model.", read_phi, write_phi, phi_table, "lm_head.weight", "embed_tokens"),
        ("falcon", "transformer.", read_falcon, write_falcon, falcon_table, "lm_head.weight", "word_embeddings"),
    )
]
