"""HF's GPT-2. The matrices of its layers are stored transposed, and Q, K and V in one matrix."""

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


def read_config(values: Mapping[str, Any], names: frozenset[str]) -> ModelConfig:
    """Convert GPT-2's `config.json` values to a `ModelConfig`. GPT-2 does not use `names`, the stored tensors."""
    require(values, "add_cross_attention", False)
    width = read_int(values, "n_embd", "hidden_size", default=768)
    is_tied = read_bool(values, "tie_word_embeddings", default=True)
    config = replace(
        preset("gpt2"),
        vocab_size=read_int(values, "vocab_size", default=50257),
        max_len=read_int(values, "n_positions", "max_position_embeddings", "n_ctx", default=1024),
        d_model=width,
        n_decoder_layers=read_int(values, "n_layer", "num_hidden_layers", default=12),
        n_heads=read_n_heads(values, "n_head", "num_attention_heads", width=width, default=12),
        d_ff=read_int(values, "n_inner", default=4 * width),
        attention_scale=None if read_bool(values, "scale_attn_weights", default=True) else 1.0,
        scale_by_depth=read_bool(values, "scale_attn_by_inverse_layer_idx", default=False),
        activation=read_activation(values, "activation_function", default="gelu_new"),
        norm_eps=read_float(values, "layer_norm_epsilon", default=1e-5),
        dropout=read_float(values, "resid_pdrop", default=0.1),
        embedding_dropout=read_float(values, "embd_pdrop", default=0.1),
        attention_dropout=read_float(values, "attn_pdrop", default=0.1),
        tie="output" if is_tied else "none",
    )
    return config if has_lm_head(values, "GPT2Model", "GPT2LMHeadModel") else config.with_head("none")


def write_config(config: ModelConfig) -> dict[str, Any]:
    """Convert a `ModelConfig` to GPT-2's `config.json` values."""
    return {
        "architectures": ["GPT2Model" if config.head == "none" else "GPT2LMHeadModel"],
        "vocab_size": config.vocab_size,
        "n_positions": config.max_len,
        "n_embd": config.d_model,
        "n_layer": config.n_decoder_layers,
        "n_head": config.n_heads,
        "n_inner": config.d_ff,
        "activation_function": TO_HF_ACTIVATION[config.activation],
        "layer_norm_epsilon": config.norm_eps,
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.embedding_dropout,
        "attn_pdrop": config.attention_dropout,
        "tie_word_embeddings": config.ties_output,
        "scale_attn_weights": config.scale != 1.0,  # with heads of width 1, both settings give a factor of 1
        "scale_attn_by_inverse_layer_idx": config.scale_by_depth,
    }


def table(config: ModelConfig) -> list[NameRule]:
    """Return the rules that map GPT-2's tensor names to our parameter names.

    HF stores Q, K and V as one tensor, and the matrices of a layer transposed.
    """
    layers = "decoder.layers", "transformer.h", config.n_decoder_layers
    fused = [
        NameRule(
            f"transformer.h.{index}.attn.c_attn.{kind}",
            tuple(f"decoder.layers.{index}.self_attn.{x}_proj.{kind}" for x in "qkv"),
            transposed=kind == "weight",
        )
        for index in range(config.n_decoder_layers)
        for kind in ("weight", "bias")
    ]
    matrices = {"self_attn.out_proj": "attn.c_proj", "ffn.up_proj": "mlp.c_fc", "ffn.down_proj": "mlp.c_proj"}
    return [
        NameRule("transformer.wte.weight", ("embeddings.tokens.weight",)),
        NameRule("transformer.wpe.weight", ("embeddings.positions.weight",)),
        *fused,
        *(
            NameRule(rule.hf_name, rule.names, transposed=rule.hf_name.endswith("weight"))
            for rule in layer_rules(*layers, matrices)
        ),
        *layer_rules(*layers, {"self_attn_sublayer.norm": "ln_1", "ffn_sublayer.norm": "ln_2"}),
        *module_rules({"decoder.norm": "transformer.ln_f", "head.out_proj": "lm_head"}),
    ]


FAMILIES = [
    Family(
        model_type="gpt2",
        kind="decoder",
        prefix="transformer.",
        read_config=read_config,
        write_config=write_config,
        table=table,
        copies=[("lm_head.weight", "transformer.wte.weight")],
        rewrites=[FOLD_EMBEDDING_SCALE],
        ignored=r"(^|\.)h\.\d+\.attn\.(masked_)?bias$",  # the causal mask
    )
]
