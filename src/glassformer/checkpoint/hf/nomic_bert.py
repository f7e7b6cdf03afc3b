"""HF's NomicBERT: BERT with rotary positions and a gated feed-forward network without biases.

Two forms of config.json exist: that of HF's class, and that of the model's own code, which has GPT-2's names
(`own_keys`). Both have the same tensors, apart from the prefix of a model with a head.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from glassformer.checkpoint.hf import bert
from glassformer.checkpoint.hf.name_tables import Family, NameRule
from glassformer.checkpoint.hf.rotary_values import read_rotary, write_rotary
from glassformer.checkpoint.hf.values import read_choice, read_int, require
from glassformer.models import ModelConfig

VARIANT = bert.BertVariant(
    model_type="nomic_bert",
    class_name="NomicBert",
    layers="nomic_bert.encoder.layers",
    layer={
        "self_attn.out_proj": "attn.out_proj",
        "self_attn_sublayer.norm": "norm1",
        "ffn.up_proj": "mlp.fc11",
        "ffn.gate_proj": "mlp.fc12",
        "ffn.down_proj": "mlp.fc2",
        "ffn_sublayer.norm": "norm2",
    },
    masked_lm_head={
        "head.transform.dense": "cls.predictions.transform.dense",
        "head.transform.norm": "cls.predictions.transform.layer_norm",
        "head.out_proj": "cls.predictions",
    },
    classification_head={"head.transform.dense": "nomic_bert.pooler.dense", "head.out_proj": "classifier"},
    more={"embeddings.norm": "nomic_bert.emb_ln"},
)
OWN_KEYS = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "layer_norm_epsilon": "layer_norm_eps",
    "resid_pdrop": "hidden_dropout_prob",
    "attn_pdrop": "attention_probs_dropout_prob",
    "rotary_emb_base": "rope_theta",
    "n_positions": "max_position_embeddings",
}
"""Keys of the model's own code -> HF's."""
REQUIRED = {
    "prenorm": False,
    "causal": False,
    "parallel_block": False,
    "use_rms_norm": False,
    "qkv_proj_bias": False,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
}
"""Settings of the model's own code, with the value that is supported."""


def read_config(values: Mapping[str, Any], names: frozenset[str]) -> ModelConfig:
    """Convert NomicBERT's `config.json` values to a `ModelConfig`."""
    values = _with_hf_keys(values)
    values = {"hidden_act": "silu", "layer_norm_eps": 1e-12, "max_position_embeddings": 2048, **values}
    config = bert.read_config(
        VARIANT, {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, **values}, names
    )
    head_dim = read_int(values, "head_dim", default=config.d_model // config.n_heads)
    return replace(
        config,
        positions="rotary",
        head_dim=None if head_dim * config.n_heads == config.d_model else head_dim,
        gated=True,
        qkv_bias=False,
        out_bias=False,
        ffn_bias=False,
        **read_rotary(values, head_dim, theta=1000.0),
    )


def _with_hf_keys(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the values with HF's keys. Refuse settings of the model's own code that are not supported."""
    if "n_embd" not in values:
        return values
    for key, allowed in REQUIRED.items():
        require(values, key, allowed)
    for key in ("rotary_emb_scale_base", "moe_every_n_layers"):
        require(values, key, 0, -1)
    found = {new: values[old] for old, new in OWN_KEYS.items() if values.get(old) is not None}
    known = {"swiglu": "silu", "geglu": "gelu"}
    found["hidden_act"] = read_choice(values, "activation_function", default="swiglu", known=known)
    if values.get("rotary_scaling_factor") is not None:  # it changes the positions of longer texts only
        found["max_position_embeddings"] = read_int(values, "max_trained_positions", default=2048)
    return {**values, **found}


def write_config(config: ModelConfig) -> dict[str, Any]:
    """Convert a `ModelConfig` to NomicBERT's `config.json` values."""
    values = bert.write_config(VARIANT, config) | write_rotary(config)
    return values | {"head_dim": config.head_size, "pad_token_id": 0}


def table(config: ModelConfig) -> list[NameRule]:
    """Return the rules that map NomicBERT's tensor names to our parameter names."""
    fused = [
        NameRule(
            f"{VARIANT.layers}.{index}.attn.Wqkv.weight",
            tuple(f"encoder.layers.{index}.self_attn.{letter}_proj.weight" for letter in "qkv"),
        )
        for index in range(config.n_encoder_layers)
    ]
    return [*bert.table(VARIANT, config), *fused]


FAMILIES: list[Family] = [
    replace(
        bert.family_of_variant(VARIANT),
        read_config=read_config,
        write_config=write_config,
        table=table,
        other_prefix="bert.",
    )
]
