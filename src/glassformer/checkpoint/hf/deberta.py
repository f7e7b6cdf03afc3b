"""HF's DeBERTa v2 and v3 (mDeBERTa included): BERT with disentangled attention.

All published v3 models have the settings that `read_config` requires. The v2 models have a convolution beside the first
layer, and v1 has other tensors; both are refused by name.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from glassformer.checkpoint.hf import bert
from glassformer.checkpoint.hf.name_tables import Family
from glassformer.checkpoint.hf.values import (
    FROM_HF_ACTIVATION,
    TO_HF_ACTIVATION,
    UnsupportedModelError,
    read_choice,
    read_int,
    read_value,
    require,
    shown,
)
from glassformer.models import ModelConfig
from glassformer.nn.activations import HeadActivationName

VARIANT = bert.BertVariant(
    model_type="deberta-v2",
    class_name="DebertaV2",
    body="deberta",
    layers="deberta.encoder.layer",
    layer={
        **bert.BERT_LAYER,
        "self_attn.q_proj": "attention.self.query_proj",
        "self_attn.k_proj": "attention.self.key_proj",
        "self_attn.v_proj": "attention.self.value_proj",
    },
    masked_lm_head={
        "head.transform.dense": "cls.predictions.transform.dense",
        "head.transform.norm": "cls.predictions.transform.LayerNorm",
        "head.out_proj": "cls.predictions",
    },
    classification_head={"head.transform.dense": "pooler.dense", "head.out_proj": "classifier"},
    more={"encoder.relative": "deberta.encoder.rel_embeddings", "encoder.relative.norm": "deberta.encoder.LayerNorm"},
)


def read_config(values: Mapping[str, Any], names: frozenset[str]) -> ModelConfig:
    """Convert DeBERTa's `config.json` values to a `ModelConfig`."""
    kinds = read_value(values, "pos_att_type", default=[])
    kinds = kinds.lower().split("|") if isinstance(kinds, str) else kinds
    if not isinstance(kinds, list) or {*map(str, kinds)} != {"c2p", "p2c"}:
        raise UnsupportedModelError(
            f"config.json has pos_att_type={shown(kinds)}, which is not supported: expected 'p2c|c2p'"
        )
    for key, needed in (
        ("relative_attention", True),
        ("share_att_key", True),
        ("position_biased_input", False),
        ("norm_rel_ebd", "layer_norm"),
    ):
        if values.get(key) != needed:
            raise UnsupportedModelError(
                f"config.json has {key}={shown(values.get(key))}, which is not supported: expected {needed!r}"
            )
    require(values, "conv_kernel_size", 0)
    width = read_int(values, "hidden_size")
    require(values, "embedding_size", width)
    require(values, "pooler_hidden_size", width)
    require(values, "attention_head_size", width // max(1, read_int(values, "num_attention_heads")))
    config = bert.read_config(VARIANT, {"type_vocab_size": 0, "layer_norm_eps": 1e-7, **values}, names)
    if config.head == "language_model":
        require(values, "legacy", True)
    length, buckets = config.max_len or 0, read_int(values, "position_buckets", default=-1)
    distance = read_int(values, "max_relative_positions", default=-1)
    if buckets < 1:
        raise UnsupportedModelError(f"config.json has position_buckets={buckets}, not supported: expected 1 or more")
    own: HeadActivationName | None = None
    if config.head == "sequence_class":
        known: dict[str, HeadActivationName] = {**FROM_HF_ACTIVATION, "tanh": "tanh"}
        own = read_choice(values, "pooler_hidden_act", default="gelu", known=known)
    return replace(
        config,
        positions="disentangled",
        relative_buckets=buckets,
        relative_max_distance=length if distance < 1 else distance,
        head_activation=own,
    )


def write_config(config: ModelConfig) -> dict[str, Any]:
    """Convert a `ModelConfig` to DeBERTa's `config.json` values."""
    values = bert.write_config(VARIANT, config) | {
        "type_vocab_size": config.token_types,
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "share_att_key": True,
        "position_biased_input": False,
        "norm_rel_ebd": "layer_norm",
        "position_buckets": config.relative_buckets,
        "max_relative_positions": config.relative_max_distance,
    }
    if config.head == "sequence_class":
        names = {str(ours): theirs for ours, theirs in TO_HF_ACTIVATION.items()}
        values["pooler_hidden_act"] = names.get(config.head_activation or "tanh", "tanh")
        values["pooler_hidden_size"] = config.d_model
    return values


FAMILIES: list[Family] = [replace(bert.family_of_variant(VARIANT), read_config=read_config, write_config=write_config)]
