"""HF's MPNet: RoBERTa with T5's relative biases, which all layers share.

HF's code has 32 buckets of distances up to 128, whatever config.json says.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from glassformer.checkpoint.hf import bert
from glassformer.checkpoint.hf.name_tables import Family
from glassformer.checkpoint.hf.values import require
from glassformer.models import ModelConfig

VARIANT = bert.BertVariant(
    model_type="mpnet",
    class_name="MPNet",
    layers="mpnet.encoder.layer",
    layer={
        "self_attn.q_proj": "attention.attn.q",
        "self_attn.k_proj": "attention.attn.k",
        "self_attn.v_proj": "attention.attn.v",
        "self_attn.out_proj": "attention.attn.o",
        "self_attn_sublayer.norm": "attention.LayerNorm",
        "ffn.up_proj": "intermediate.dense",
        "ffn.down_proj": "output.dense",
        "ffn_sublayer.norm": "output.LayerNorm",
    },
    masked_lm_head={
        "head.transform.dense": "lm_head.dense",
        "head.transform.norm": "lm_head.layer_norm",
        "head.out_proj": "lm_head",
    },
    classification_head={"head.transform.dense": "classifier.dense", "head.out_proj": "classifier.out_proj"},
    more={"encoder.score_bias": "mpnet.encoder.relative_attention_bias"},
)
BUCKETS, DISTANCE = 32, 128
OFFSET = 2
"""Row of the first token's position. HF's code takes it from a padding token of 1, whatever config.json says."""


def read_config(values: Mapping[str, Any], names: frozenset[str]) -> ModelConfig:
    """Convert MPNet's `config.json` values to a `ModelConfig`."""
    require(values, "relative_attention_num_buckets", BUCKETS)
    config = bert.read_config(VARIANT, {**values, "type_vocab_size": 0}, names)
    return replace(
        config,
        max_len=(config.max_len or 0) - OFFSET,
        position_offset=OFFSET,
        relative_bias=True,
        relative_buckets=BUCKETS,
        relative_max_distance=DISTANCE,
    )


def write_config(config: ModelConfig) -> dict[str, Any]:
    """Convert a `ModelConfig` to MPNet's `config.json` values."""
    values = bert.write_config(VARIANT, config) | {"relative_attention_num_buckets": BUCKETS, "pad_token_id": 1}
    del values["type_vocab_size"]
    return values


FAMILIES: list[Family] = [replace(bert.family_of_variant(VARIANT), read_config=read_config, write_config=write_config)]
