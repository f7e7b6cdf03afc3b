"""HF's ModernBERT: a pre-norm encoder with rotary positions, gated feed-forward layers and windows in some layers."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from glassformer.checkpoint.hf.name_tables import Family, NameRule, layer_rules, module_rules
from glassformer.checkpoint.hf.values import (
    TO_HF_ACTIVATION,
    UnsupportedModelError,
    read_activation,
    read_architecture,
    read_bool,
    read_choice,
    read_float,
    read_int,
    read_n_heads,
    read_n_labels,
    read_value,
    shown,
)
from glassformer.models import ModelConfig, preset
from glassformer.models.config import PoolingName

HEADS = {
    "ForMaskedLM": "language_model",
    "ForSequenceClassification": "sequence_class",
    "ForTokenClassification": "token_class",
    "ForQuestionAnswering": "span",
    "Model": "none",
}
LAYER = {
    "self_attn.out_proj": "attn.Wo",
    "self_attn_sublayer.norm": "attn_norm",
    "ffn.down_proj": "mlp.Wo",
    "ffn_sublayer.norm": "mlp_norm",
}
FUSED = {
    "attn.Wqkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.Wi": ("ffn.gate_proj", "ffn.up_proj"),
}
POOLINGS: dict[str, PoolingName] = {"cls": "first", "mean": "mean"}
GLOBAL, LOCAL = "full_attention", "sliding_attention"


def read_config(values: Mapping[str, Any], names: frozenset[str]) -> ModelConfig:
    """Convert ModernBERT's `config.json` values to a `ModelConfig`."""
    width, depth = read_int(values, "hidden_size"), read_int(values, "num_hidden_layers")
    bias = read_bool(values, "attention_bias", default=False)
    config = replace(
        preset("modernbert-base").with_head("none"),
        vocab_size=read_int(values, "vocab_size"),
        d_model=width,
        d_ff=read_int(values, "intermediate_size"),
        n_encoder_layers=depth,
        n_heads=read_n_heads(values, "num_attention_heads", width=width),
        max_len=read_int(values, "max_position_embeddings", default=8192),
        activation=read_activation(values, "hidden_activation", default="gelu"),
        norm_eps=read_float(values, "norm_eps", default=1e-5),
        norm_bias=read_bool(values, "norm_bias", default=False),
        qkv_bias=bias,
        out_bias=bias,
        ffn_bias=read_bool(values, "mlp_bias", default=False),
        attention_dropout=read_float(values, "attention_dropout", default=0.0),
        activation_dropout=read_float(values, "mlp_dropout", default=0.0),
        embedding_dropout=read_float(values, "embedding_dropout", default=0.0),
        **_windows(values, depth),
    )
    return _with_head(config, values)


def _windows(values: Mapping[str, Any], depth: int) -> dict[str, Any]:
    """Return the fields about windows and about rotary positions, which differ between the two kinds of layers."""
    kinds = read_value(values, "layer_types", default=None)
    if kinds is None:
        every = read_int(values, "global_attn_every_n_layers", default=3)
        kinds = [LOCAL if every < 1 or index % every else GLOBAL for index in range(min(depth, 1 << 16))]
    if not isinstance(kinds, list) or len(kinds) != depth or not {*map(str, kinds)} <= {GLOBAL, LOCAL}:
        raise ValueError(f"config.json has layer_types={shown(kinds)}: expected {GLOBAL} or {LOCAL} for each layer")
    global_theta = _theta(values, GLOBAL, "global_rope_theta", 160000.0)
    local_theta = _theta(values, LOCAL, "local_rope_theta", 10000.0)
    places = tuple(index for index, kind in enumerate(kinds) if kind == GLOBAL)
    if len(places) == depth:
        return {"rope_theta": global_theta, "sliding_window": None, "global_layers": (), "local_rope_theta": None}
    # HF's window reaches half of `local_attention` to each side; ours excludes its end.
    window = read_int(values, "local_attention", default=128) // 2 + 1
    found = {"sliding_window": window, "global_layers": places}
    if not places or local_theta == global_theta:
        return {**found, "rope_theta": local_theta, "local_rope_theta": None}
    return {**found, "rope_theta": global_theta, "local_rope_theta": local_theta}


def _theta(values: Mapping[str, Any], kind: str, old_key: str, default: float) -> float:
    """Return the base of the rotary frequencies in layers of this kind."""
    tables = read_value(values, "rope_parameters", default={})
    table = tables.get(kind) if isinstance(tables, Mapping) else None
    table = {} if table is None else table
    scaling = read_value(values, "rope_scaling", default=None)
    if not isinstance(table, Mapping) or scaling is not None or table.get("rope_type", "default") != "default":
        raise UnsupportedModelError(
            f"config.json has rotary positions {shown(scaling or table)} in {kind} layers, not supported: expected the "
            "type 'default'"
        )
    usual = read_float(values, old_key, default=default)
    return read_float(table, "rope_theta", default=usual)


def _with_head(config: ModelConfig, values: Mapping[str, Any]) -> ModelConfig:
    name = read_architecture(values)
    ending = name.removeprefix("ModernBert") or "Model"
    if ending not in HEADS:
        raise UnsupportedModelError(
            f"config.json has architectures=[{name[:80]!r}], whose head is not supported: expected ModernBert with one "
            f"of {', '.join(HEADS)}"
        )
    head = HEADS[ending]
    if head == "none":
        return config
    more: dict[str, Any] = {
        "head_transform": True,
        "head_norm": True,
        "head_bias": read_bool(values, "classifier_bias", default=False),
        "head_activation": read_activation(values, "classifier_activation", default="gelu"),
    }
    if head == "language_model":
        is_tied = read_bool(values, "tie_word_embeddings", default=True)
        more |= {"tie": "output" if is_tied else "none"}
        more |= {"output_bias": read_bool(values, "decoder_bias", default=True)}
    if head in ("sequence_class", "token_class"):
        more["n_labels"] = read_n_labels(values)
    if head == "sequence_class":
        more["pooling"] = read_choice(values, "classifier_pooling", default="cls", known=POOLINGS)
    return config.with_head(head, **more)


def write_config(config: ModelConfig) -> dict[str, Any]:
    """Convert a `ModelConfig` to ModernBERT's `config.json` values."""
    window, depth = config.sliding_window, config.n_encoder_layers
    kinds = [GLOBAL if window is None or index in config.global_layers else LOCAL for index in range(depth)]
    local_theta = config.rope_theta if config.local_rope_theta is None else config.local_rope_theta
    ending = {head: name for name, head in HEADS.items()}.get(config.head, "Model")
    values: dict[str, Any] = {
        "architectures": [f"ModernBert{ending}"],
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "intermediate_size": config.d_ff,
        "num_hidden_layers": depth,
        "num_attention_heads": config.n_heads,
        "max_position_embeddings": config.max_len,
        "hidden_activation": TO_HF_ACTIVATION[config.activation],
        "norm_eps": config.norm_eps,
        "norm_bias": config.norm_bias,
        "attention_bias": config.qkv_bias,
        "mlp_bias": config.ffn_bias,
        "attention_dropout": config.attention_dropout,
        "mlp_dropout": config.activation_dropout,
        "embedding_dropout": config.embedding_dropout,
        "layer_types": kinds,
        "local_attention": 128 if window is None else 2 * (window - 1),
        "global_rope_theta": config.rope_theta,
        "local_rope_theta": local_theta,
        "rope_parameters": {
            GLOBAL: {"rope_type": "default", "rope_theta": config.rope_theta},
            LOCAL: {"rope_type": "default", "rope_theta": local_theta},
        },
        "tie_word_embeddings": config.ties_output or config.head != "language_model",
        # HF's default ids exceed a small vocabulary. The caller overrides them if the tokenizer has these tokens.
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 0),
    }
    for every in range(1, depth + 1):  # for HF before version 5
        if kinds == [LOCAL if index % every else GLOBAL for index in range(depth)]:
            values["global_attn_every_n_layers"] = every
            break
    if config.head != "none":
        names = {str(ours): theirs for ours, theirs in TO_HF_ACTIVATION.items()}
        values["classifier_bias"] = config.head_bias
        values["classifier_activation"] = names.get(config.head_activation or config.activation, "gelu")
        values["classifier_pooling"] = "mean" if config.pooling == "mean" else "cls"
        values["decoder_bias"] = config.output_bias
    if config.n_labels is not None:
        values["id2label"] = {str(index): f"LABEL_{index}" for index in range(config.n_labels)}
        values["label2id"] = {f"LABEL_{index}": index for index in range(config.n_labels)}
    return values


def table(config: ModelConfig) -> list[NameRule]:
    """Return the rules that map ModernBERT's tensor names to our parameter names."""
    parts = {
        "embeddings.tokens": "model.embeddings.tok_embeddings",
        "embeddings.norm": "model.embeddings.norm",
        "encoder.norm": "model.final_norm",
        "head.transform.dense": "head.dense",
        "head.transform.norm": "head.norm",
        "head.out_proj": "decoder" if config.head == "language_model" else "classifier",
    }
    depth = config.n_encoder_layers
    fused = [
        NameRule(
            f"model.layers.{index}.{theirs}.{kind}", tuple(f"encoder.layers.{index}.{name}.{kind}" for name in ours)
        )
        for index in range(depth)
        for theirs, ours in FUSED.items()
        for kind in ("weight", "bias")
    ]
    return [*module_rules(parts), *layer_rules("encoder.layers", "model.layers", depth, LAYER), *fused]


FAMILIES = [
    Family(
        model_type="modernbert",
        kind="encoder",
        prefix="model.",
        read_config=read_config,
        write_config=write_config,
        table=table,
        copies=[("decoder.weight", "model.embeddings.tok_embeddings.weight")],
    )
]
