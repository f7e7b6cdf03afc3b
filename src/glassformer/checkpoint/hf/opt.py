"""HF's OPT: GPT-2's blocks with ReLU and the tensor names of BART's decoder.

OPT-350M, whose embeddings are narrower than the model without a bias in their projection, is refused by name.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from glassformer.checkpoint.hf.equivalent_forms import FOLD_EMBEDDING_SCALE
from glassformer.checkpoint.hf.name_tables import Family, NameRule, layer_rules, module_rules
from glassformer.checkpoint.hf.values import (
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

OFFSET = 2
"""The first rows of the table of positions, which are not used."""
LAYER = {
    "self_attn.q_proj": "self_attn.q_proj",
    "self_attn.k_proj": "self_attn.k_proj",
    "self_attn.v_proj": "self_attn.v_proj",
    "self_attn.out_proj": "self_attn.out_proj",
    "self_attn_sublayer.norm": "self_attn_layer_norm",
    "ffn.up_proj": "fc1",
    "ffn.down_proj": "fc2",
    "ffn_sublayer.norm": "final_layer_norm",
}


def read_config(values: Mapping[str, Any], names: frozenset[str]) -> ModelConfig:
    """Convert OPT's `config.json` values to a `ModelConfig`. OPT does not use `names`, the stored tensors."""
    width = read_int(values, "hidden_size")
    require(values, "word_embed_proj_dim", width)
    require(values, "layer_norm_elementwise_affine", True)
    require(values, "_remove_final_layer_norm", False)
    has_bias = read_bool(values, "enable_bias", default=True)
    is_pre = read_bool(values, "do_layer_norm_before", default=True)
    dropout = read_float(values, "dropout", default=0.1)
    config = replace(
        preset("gpt2"),
        vocab_size=read_int(values, "vocab_size"),
        d_model=width,
        d_ff=read_int(values, "ffn_dim"),
        n_decoder_layers=read_int(values, "num_hidden_layers"),
        n_heads=read_n_heads(values, "num_attention_heads", width=width),
        max_len=read_int(values, "max_position_embeddings", default=2048),
        position_offset=OFFSET,
        activation=read_activation(values, "activation_function", default="relu"),
        norm_placement="pre" if is_pre else "post",
        qkv_bias=has_bias,
        out_bias=has_bias,
        ffn_bias=has_bias,
        tie="output" if read_bool(values, "tie_word_embeddings", default=True) else "none",
        dropout=dropout,
        attention_dropout=read_float(values, "attention_dropout", default=0.0),
        embedding_dropout=0.0,
        init="normal",
    )
    return config if has_lm_head(values, "OPTModel", "OPTForCausalLM") else config.with_head("none")


def write_config(config: ModelConfig) -> dict[str, Any]:
    """Convert a `ModelConfig` to OPT's `config.json` values."""
    return {
        "architectures": ["OPTModel" if config.head == "none" else "OPTForCausalLM"],
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "word_embed_proj_dim": config.d_model,
        "ffn_dim": config.d_ff,
        "num_hidden_layers": config.n_decoder_layers,
        "num_attention_heads": config.n_heads,
        "max_position_embeddings": config.max_len,
        "activation_function": TO_HF_ACTIVATION[config.activation],
        "do_layer_norm_before": config.norm_placement == "pre",
        "enable_bias": config.out_bias,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "tie_word_embeddings": config.ties_output,
    }


def table(config: ModelConfig) -> list[NameRule]:
    """Return the rules that map OPT's tensor names to our parameter names."""
    parts = {
        "embeddings.tokens": "model.decoder.embed_tokens",
        "embeddings.positions": "model.decoder.embed_positions",
        "decoder.norm": "model.decoder.final_layer_norm",
        "head.out_proj": "lm_head",
    }
    return [
        *module_rules(parts),
        *layer_rules("decoder.layers", "model.decoder.layers", config.n_decoder_layers, LAYER),
    ]


FAMILIES = [
    Family(
        model_type="opt",
        kind="decoder",
        prefix="model.",
        read_config=read_config,
        write_config=write_config,
        table=table,
        copies=[("lm_head.weight", "model.decoder.embed_tokens.weight")],
        rewrites=[FOLD_EMBEDDING_SCALE],
    )
]
