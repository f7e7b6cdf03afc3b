"""HF's DeBERTa v1, and v2 with v3 (mDeBERTa included): BERT with disentangled attention.

v1 has one matrix for queries, keys and values, and separate projections of relative positions. v2 may have a
convolution beside the first layer. Settings that no published model has, such as one kind of relative attention alone,
are refused by name.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from glassformer.checkpoint.hf import bert
from glassformer.checkpoint.hf.name_tables import Family, NameRule
from glassformer.checkpoint.hf.row_orders import HeadGroups
from glassformer.checkpoint.hf.values import (
    FROM_HF_ACTIVATION,
    TO_HF_ACTIVATION,
    UnsupportedModelError,
    read_bool,
    read_choice,
    read_int,
    read_value,
    require,
    shown,
)
from glassformer.models import ModelConfig
from glassformer.nn.activations import HeadActivationName

V2 = bert.BertVariant(
    model_type="deberta-v2",
    class_name="DebertaV2",
    body="deberta",
    layers="deberta.encoder.layer",
    layer={
        **bert.BERT_LAYER,
        "self_attn.q_proj": "attention.self.query_proj",
        "self_attn.k_proj": "attention.self.key_proj",
        "self_attn.v_proj": "attention.self.value_proj",
        "self_attn.relative_q_proj": "attention.self.pos_query_proj",
        "self_attn.relative_k_proj": "attention.self.pos_key_proj",
    },
    masked_lm_head={
        "head.transform.dense": "cls.predictions.transform.dense",
        "head.transform.norm": "cls.predictions.transform.LayerNorm",
        "head.out_proj": "cls.predictions",
    },
    classification_head={"head.transform.dense": "pooler.dense", "head.out_proj": "classifier"},
    more={
        "encoder.relative": "deberta.encoder.rel_embeddings",
        "encoder.relative.norm": "deberta.encoder.LayerNorm",
        "encoder.layers.0.convolution.conv": "deberta.encoder.conv.conv",
        "encoder.layers.0.convolution.norm": "deberta.encoder.conv.LayerNorm",
    },
)
V1 = replace(
    V2,
    model_type="deberta",
    class_name="Deberta",
    layer={
        **{ours: theirs for ours, theirs in bert.BERT_LAYER.items() if not theirs.startswith("attention.self.")},
        "self_attn.relative_q_proj": "attention.self.pos_q_proj",
        "self_attn.relative_k_proj": "attention.self.pos_proj",
    },
    more={"encoder.relative": "deberta.encoder.rel_embeddings"},
)
ACTIVATIONS: dict[str, HeadActivationName] = {**FROM_HF_ACTIVATION, "tanh": "tanh"}


def read_config(variant: bert.BertVariant, values: Mapping[str, Any], names: frozenset[str]) -> ModelConfig:
    """Convert DeBERTa's `config.json` values to a `ModelConfig`."""
    is_v1 = variant is V1
    kinds = read_value(values, "pos_att_type", default=[])
    kinds = kinds.lower().split("|") if isinstance(kinds, str) else kinds
    if not isinstance(kinds, list) or {*map(str, kinds)} != {"c2p", "p2c"}:
        raise UnsupportedModelError(
            f"config.json has pos_att_type={shown(kinds)}, which is not supported: expected 'p2c|c2p'"
        )
    for key, needed in (("relative_attention", True), ("position_biased_input", False)):
        if values.get(key) != needed:
            raise UnsupportedModelError(
                f"config.json has {key}={shown(values.get(key))}, which is not supported: expected {needed!r}"
            )
    require(values, "talking_head", False)
    width = read_int(values, "hidden_size")
    require(values, "embedding_size", width)
    require(values, "pooler_hidden_size", width)
    require(values, "attention_head_size", width // max(1, read_int(values, "num_attention_heads")))
    config = bert.read_config(variant, {"type_vocab_size": 0, "layer_norm_eps": 1e-7, **values}, names)
    if config.head == "language_model":
        require(values, "legacy", True)
    distance = read_int(values, "max_relative_positions", default=-1)
    distance = config.max_len or 0 if distance < 1 else distance
    buckets = -1 if is_v1 else read_int(values, "position_buckets", default=-1)
    own: HeadActivationName | None = None
    if config.head == "sequence_class":
        own = read_choice(values, "pooler_hidden_act", default="gelu", known=ACTIVATIONS)
    config = replace(
        config,
        positions="disentangled",
        relative_buckets=distance if buckets < 1 else buckets,
        relative_max_distance=distance,
        relative_log=buckets >= 1,
        head_activation=own,
    )
    if is_v1:
        return replace(config, relative_norm=False, share_relative_proj=False, key_bias=False)
    has_norm = read_choice(values, "norm_rel_ebd", default="none", known={"layer_norm": True, "none": False})
    kernel = read_int(values, "conv_kernel_size", default=0)
    if kernel > 0:
        require(values, "conv_groups", 1)
        act = read_choice(values, "conv_act", default="tanh", known=ACTIVATIONS)
        config = replace(config, conv_kernel=kernel, conv_activation=act)
    is_shared = read_bool(values, "share_att_key", default=False)
    return replace(config, relative_norm=has_norm, share_relative_proj=is_shared)


def write_config(variant: bert.BertVariant, config: ModelConfig) -> dict[str, Any]:
    """Convert a `ModelConfig` to DeBERTa's `config.json` values."""
    names = {str(ours): theirs for ours, theirs in TO_HF_ACTIVATION.items()}
    values = bert.write_config(variant, config) | {
        "type_vocab_size": config.token_types,
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False,
        "max_relative_positions": config.relative_max_distance if config.relative_log else config.relative_buckets,
    }
    if config.head == "sequence_class":
        values["pooler_hidden_act"] = names.get(config.head_activation or "tanh", "tanh")
        values["pooler_hidden_size"] = config.d_model
    if variant is V1:
        return values
    values |= {
        "share_att_key": config.share_relative_proj,
        "norm_rel_ebd": "layer_norm" if config.relative_norm else "none",
        "position_buckets": config.relative_buckets if config.relative_log else -1,
    }
    if config.conv_kernel is not None:
        values["conv_kernel_size"] = config.conv_kernel
        values["conv_act"] = names.get(config.conv_activation, "tanh")
    return values


def table(variant: bert.BertVariant, config: ModelConfig) -> list[NameRule]:
    """Return the rules that map DeBERTa's tensor names to our parameter names."""
    return [*bert.table(variant, config), *(_fused_rules(config) if variant is V1 else ())]


def _fused_rules(config: ModelConfig) -> Iterator[NameRule]:
    """Yield the rules for v1's matrix of queries, keys and values, in which the three parts of a head are together."""
    order = HeadGroups(config.n_heads, config.head_size)
    for index in range(config.n_encoder_layers):
        ours, theirs = f"encoder.layers.{index}.self_attn", f"{V1.layers}.{index}.attention.self"
        parts = tuple(f"{ours}.{letter}_proj.weight" for letter in "qkv")
        yield NameRule(f"{theirs}.in_proj.weight", parts, order=order)
        for letter in "qv":
            yield NameRule(f"{theirs}.{letter}_bias", (f"{ours}.{letter}_proj.bias",))


def _family(variant: bert.BertVariant) -> Family:
    base = bert.family_of_variant(variant)
    return replace(
        base,
        read_config=lambda values, names: read_config(variant, values, names),
        write_config=lambda config: write_config(variant, config),
        table=lambda config: table(variant, config),
        # Published files hold learned positions that are not used, and the heads of the first training.
        ignored=rf"{base.ignored}|^(deberta\.)?embeddings\.position_embeddings\.weight$",
        extra_heads=rf"{base.extra_heads}|^(lm|mask)_predictions\.",
    )


FAMILIES: list[Family] = [_family(V2), _family(V1)]
