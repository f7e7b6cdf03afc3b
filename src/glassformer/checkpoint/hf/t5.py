"""HF's T5 (1.0 and 1.1, Flan-T5 included), mT5 and UMT5: config conversion and name table.

The first layer of each stack stores the relative position biases, in UMT5 every layer. The output may be tied, scaled,
both or neither. `kind` is the family's `model_type`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from glassformer.checkpoint.hf.name_tables import Family, NameRule, layer_rules, module_rules
from glassformer.checkpoint.hf.values import (
    TO_HF_ACTIVATION,
    has_lm_head,
    read_activation,
    read_bool,
    read_choice,
    read_float,
    read_int,
)
from glassformer.models import ModelConfig, preset
from glassformer.nn.activations import ActivationName

FEED_FORWARD: dict[str, tuple[ActivationName, bool]] = {
    "relu": ("relu", False),
    "gelu": ("gelu", False),
    "gelu_new": ("gelu_tanh", False),
    "silu": ("silu", False),
    "gated-gelu": ("gelu_tanh", True),
    "gated-silu": ("silu", True),
    "gated-relu": ("relu", True),
}


CLASSES = {"t5": "T5", "mt5": "MT5", "umt5": "UMT5"}


def read_config(kind: str, values: Mapping[str, Any], names: frozenset[str]) -> ModelConfig:
    """Convert T5's `config.json` values to a `ModelConfig`.

    `names` are the stored tensors. With `lm_head.weight` among them, the output is not tied to the embeddings.
    """
    is_t5, name = kind == "t5", CLASSES[kind]
    usual = "relu" if is_t5 else "gated-gelu"
    act, gated = read_choice(values, "feed_forward_proj", default=usual, known=FEED_FORWARD)
    # HF also stores the two parts of feed_forward_proj; they take precedence.
    act = read_activation(values, "dense_act_fn", default=TO_HF_ACTIVATION[act])
    gated = read_bool(values, "is_gated_act", default=gated)
    # Before version 5 of HF, `tie_word_embeddings` means that the output is tied, and scaled. Later files have
    # `scale_decoder_outputs` for the scale; there the output is tied if its tensor is absent or equal.
    is_tied = read_bool(values, "tie_word_embeddings", default=True)
    is_scaled = read_bool(values, "scale_decoder_outputs", default=is_tied)
    is_own = "lm_head.weight" in names or not (is_tied or "scale_decoder_outputs" in values)
    if not is_t5:  # the stored tensors alone decide what is tied; HF scales the output of UMT5 only
        is_own, is_scaled = "lm_head.weight" in names, kind == "umt5" and is_tied
    layers = read_int(values, "num_layers", "num_hidden_layers", default=6 if is_t5 else 8)
    width = read_int(values, "d_model", "hidden_size", default=512)
    heads = read_int(values, "num_heads", default=8 if is_t5 else 6)
    head_dim = read_int(values, "d_kv", default=64)
    dropout = read_float(values, "dropout_rate", default=0.1)
    config = replace(
        preset("t5-small"),
        vocab_size=read_int(values, "vocab_size", default=32128 if is_t5 else 250112),
        d_model=width,
        n_heads=heads,
        head_dim=None if head_dim * heads == width else head_dim,
        d_ff=read_int(values, "d_ff", default=2048 if is_t5 else 1024),
        n_encoder_layers=layers,
        n_decoder_layers=read_int(values, "num_decoder_layers", default=layers),
        relative_buckets=read_int(values, "relative_attention_num_buckets", default=32),
        relative_max_distance=read_int(values, "relative_attention_max_distance", default=128),
        share_relative_bias=kind != "umt5",
        norm_eps=read_float(values, "layer_norm_epsilon", default=1e-6),
        activation=act,
        gated=gated,
        tie="embeddings" if is_own else "all",
        scale_output=is_scaled,
        dropout=dropout,
        embedding_dropout=dropout,
        attention_dropout=dropout,
        activation_dropout=dropout,
    )
    with_lm_head = has_lm_head(values, f"{name}Model", f"{name}ForConditionalGeneration", "T5WithLMHeadModel")
    return config if with_lm_head else config.with_head("none", scale_output=False)


def write_config(kind: str, config: ModelConfig) -> dict[str, Any]:
    """Convert a `ModelConfig` to T5's `config.json` values."""
    kinds = {kind: name for name, kind in FEED_FORWARD.items()}
    return {
        "architectures": [CLASSES[kind] + ("Model" if config.head == "none" else "ForConditionalGeneration")],
        "vocab_size": config.vocab_size,
        "d_model": config.d_model,
        "d_kv": config.head_size,
        "d_ff": config.d_ff,
        "num_layers": config.n_encoder_layers,
        "num_decoder_layers": config.n_decoder_layers,
        "num_heads": config.n_heads,
        "relative_attention_num_buckets": config.relative_buckets,
        "relative_attention_max_distance": config.relative_max_distance,
        "dropout_rate": config.dropout,
        "layer_norm_epsilon": config.norm_eps,
        "feed_forward_proj": kinds.get((config.activation, config.gated), "gated-gelu"),
        "tie_word_embeddings": config.scale_output,  # HF before version 5 scales by this flag
        **({"scale_decoder_outputs": config.scale_output} if kind == "t5" else {}),
        "is_encoder_decoder": True,
        "decoder_start_token_id": 0,
    }


def table(config: ModelConfig) -> list[NameRule]:
    """Return the rules that map T5's tensor names to our parameter names."""
    gate = {"ffn.gate_proj": "wi_0", "ffn.up_proj": "wi_1"} if config.gated else {"ffn.up_proj": "wi"}
    found = [
        NameRule("shared.weight", ("source_embeddings.tokens.weight",)),
        *module_rules({"encoder.norm": "encoder.final_layer_norm", "decoder.norm": "decoder.final_layer_norm"}),
        NameRule("lm_head.weight", ("head.out_proj.weight",)),
    ]
    for stack, depth in (("encoder", config.n_encoder_layers), ("decoder", config.n_decoder_layers)):
        steps = {"self_attn": "SelfAttention"} | ({"cross_attn": "EncDecAttention"} if stack == "decoder" else {})
        pairs = {}
        for index, (ours, theirs) in enumerate(steps.items()):
            for letter in "qkv":
                pairs[f"{ours}.{letter}_proj"] = f"layer.{index}.{theirs}.{letter}"
            pairs[f"{ours}.out_proj"] = f"layer.{index}.{theirs}.o"
            pairs[f"{ours}_sublayer.norm"] = f"layer.{index}.layer_norm"
        dense = f"layer.{len(steps)}.DenseReluDense"
        pairs |= {ours: f"{dense}.{theirs}" for ours, theirs in (gate | {"ffn.down_proj": "wo"}).items()}
        pairs["ffn_sublayer.norm"] = f"layer.{len(steps)}.layer_norm"
        found += layer_rules(f"{stack}.layers", f"{stack}.block", depth, pairs)
        tables = {0: "score_bias"} if config.share_relative_bias else {i: f"score_bias.{i}" for i in range(depth)}
        for index, ours in tables.items():
            bias = f"{stack}.block.{index}.layer.0.SelfAttention.relative_attention_bias.weight"
            found.append(NameRule(bias, (f"{stack}.{ours}.weight",)))
    return found


def _family(kind: str) -> Family:
    return Family(
        model_type=kind,
        kind="encoder_decoder",
        prefix="",
        read_config=lambda values, names: read_config(kind, values, names),
        write_config=lambda config: write_config(kind, config),
        table=table,
        copies=[
            ("encoder.embed_tokens.weight", "shared.weight"),
            ("decoder.embed_tokens.weight", "shared.weight"),
            ("lm_head.weight", "shared.weight"),
        ],
        ties_by_tensors=True,
        ignored=r"^decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight$",
    )


FAMILIES = [_family(kind) for kind in CLASSES]
