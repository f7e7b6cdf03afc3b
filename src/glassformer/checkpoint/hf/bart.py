"""HF's BART and mBART (learned positions); Marian, Pegasus and M2M100 with NLLB (sinusoidal positions).

mBART, Pegasus and M2M100 are pre-norm. `kind` is the family's `model_type`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from glassformer.checkpoint.hf.equivalent_forms import SINES_FIRST
from glassformer.checkpoint.hf.name_tables import Family, NameRule, layer_rules, module_rules
from glassformer.checkpoint.hf.values import (
    TO_HF_ACTIVATION,
    UnsupportedModelError,
    has_lm_head,
    read_activation,
    read_bool,
    read_float,
    read_int,
    read_n_heads,
    require,
)
from glassformer.models import ModelConfig, preset

if TYPE_CHECKING:
    from torch import Tensor

CLASSES = {
    "bart": ("BartModel", "BartForConditionalGeneration"),
    "marian": ("MarianModel", "MarianMTModel"),
    "pegasus": ("PegasusModel", "PegasusForConditionalGeneration"),
    "mbart": ("MBartModel", "MBartForConditionalGeneration"),
    "m2m_100": ("M2M100Model", "M2M100ForConditionalGeneration"),
}
PRE_NORM = ("pegasus", "mbart", "m2m_100")
WITH_SINUSOIDS = ("marian", "pegasus")
"""Families with sinusoidal positions, in which all sines precede all cosines."""
POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
SIDES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
IGNORED = {
    "marian": r"^(model\.)?shared\.weight$",  # HF's untied Marian stores the shared table but does not use it
    "m2m_100": r"embed_positions\.weights?$",  # old files hold the sinusoidal positions
}
LAYER = {
    "self_attn.q_proj": "self_attn.q_proj",
    "self_attn.k_proj": "self_attn.k_proj",
    "self_attn.v_proj": "self_attn.v_proj",
    "self_attn.out_proj": "self_attn.out_proj",
    "self_attn_sublayer.norm": "self_attn_layer_norm",
    "cross_attn.q_proj": "encoder_attn.q_proj",
    "cross_attn.k_proj": "encoder_attn.k_proj",
    "cross_attn.v_proj": "encoder_attn.v_proj",
    "cross_attn.out_proj": "encoder_attn.out_proj",
    "cross_attn_sublayer.norm": "encoder_attn_layer_norm",
    "ffn.up_proj": "fc1",
    "ffn.down_proj": "fc2",
    "ffn_sublayer.norm": "final_layer_norm",
}


def read_config(kind: str, values: Mapping[str, Any], names: frozenset[str]) -> ModelConfig:
    """Convert HF's `config.json` values to a `ModelConfig`.

    `names` are the stored tensors. They determine `output_bias`, and `tie` where the config leaves it open (`_tie`).
    """
    for key in ("normalize_before", "add_final_layer_norm"):
        # Old files of pre-norm families hold these keys, too, which HF does not read.
        require(values, key, False, kind in PRE_NORM)
    sizes = {}
    for what in ("attention_heads", "ffn_dim"):
        sides = {read_int(values, f"{side}_{what}") for side in ("encoder", "decoder")}
        if len(sides) > 1:
            raise UnsupportedModelError(f"config.json has encoder and decoder of different {what}: expected one")
        sizes[what] = sides.pop()
    width = read_int(values, "d_model")
    n_heads = read_n_heads(values, "encoder_attention_heads", width=width)
    vocab_size = read_int(values, "vocab_size")
    is_shared = kind != "marian" or read_bool(values, "share_encoder_decoder_embeddings", default=True)
    with_lm_head = has_lm_head(values, *CLASSES[kind])
    # Without an output to tie, HF keeps tables that differ, whatever the config says.
    is_tied = with_lm_head and read_bool(values, "tie_word_embeddings", default=True)
    # HF's shared table is as long as `vocab_size`, whatever `decoder_vocab_size` says.
    target_vocab = vocab_size if is_shared else read_int(values, "decoder_vocab_size", default=vocab_size)
    dropout = read_float(values, "dropout", default=0.1)
    config = replace(
        preset("bart-base" if kind in ("bart", "mbart") else "nllb" if kind == "m2m_100" else "marian"),
        vocab_size=target_vocab,
        source_vocab_size=None if target_vocab == vocab_size else vocab_size,
        d_model=width,
        n_heads=n_heads,
        d_ff=sizes["ffn_dim"],
        n_encoder_layers=read_int(values, "encoder_layers"),
        n_decoder_layers=read_int(values, "decoder_layers"),
        max_len=read_int(values, "max_position_embeddings", default=1024),
        activation=read_activation(values, "activation_function", default="relu" if kind == "m2m_100" else "gelu"),
        scale_embeddings=read_bool(values, "scale_embedding", default=kind == "m2m_100"),
        tie=_tie(is_shared, is_tied, names),
        output_bias="final_logits_bias" in names,
        norm_placement="pre" if kind in PRE_NORM else "post",
        dropout=dropout,
        embedding_dropout=dropout,
        attention_dropout=read_float(values, "attention_dropout", default=0.1 if kind == "m2m_100" else 0.0),
        activation_dropout=read_float(values, "activation_dropout", default=0.0),
    )
    if kind == "m2m_100":  # HF numbers positions from the padding token on
        config = replace(config, position_offset=read_int(values, "pad_token_id", default=1) + 1)
    return config if with_lm_head else config.with_head("none", output_bias=True)


def _tie(is_shared: bool, is_tied: bool, names: frozenset[str]) -> Literal["none", "output", "embeddings", "all"]:
    """Return the `tie` setting of `ModelConfig`.

    In HF's config, `is_shared` means that source and target share an embedding table, and `is_tied` that the output is
    tied to the target's table. If only `is_shared` is true, the names of the stored tensors decide: the source and
    target embeddings are tied if the file holds one table (HF before version 5), and not tied if it holds two. A
    second table that equals the first counts as tied; the caller has already removed its name from `names`.
    """
    if is_tied:
        return "all" if is_shared else "output"
    has_one_table = not any(name.removeprefix("model.") in SIDES for name in names)
    return "embeddings" if is_shared and has_one_table else "none"


def write_config(kind: str, config: ModelConfig) -> dict[str, Any]:
    """Convert a `ModelConfig` to the family's `config.json` values."""
    values = {
        "architectures": [CLASSES[kind][config.head != "none"]],
        "vocab_size": config.source_vocab,
        "d_model": config.d_model,
        "encoder_layers": config.n_encoder_layers,
        "decoder_layers": config.n_decoder_layers,
        "encoder_attention_heads": config.n_heads,
        "decoder_attention_heads": config.n_heads,
        "encoder_ffn_dim": config.d_ff,
        "decoder_ffn_dim": config.d_ff,
        "max_position_embeddings": config.max_len,
        "activation_function": TO_HF_ACTIVATION[config.activation],
        "scale_embedding": config.scale_embeddings,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.activation_dropout,
        "tie_word_embeddings": config.ties_output,
        "is_encoder_decoder": True,
    }
    if kind == "m2m_100":
        values["pad_token_id"] = config.position_offset - 1
    if kind == "marian":
        values |= {
            "decoder_vocab_size": config.vocab_size,
            "share_encoder_decoder_embeddings": config.ties_embeddings,
            # HF's default id exceeds a small vocabulary. The caller overrides it if the tokenizer has a padding token.
            "pad_token_id": config.vocab_size - 1,
            "decoder_start_token_id": config.vocab_size - 1,
        }
    return values


def table(kind: str, config: ModelConfig) -> list[NameRule]:
    """Return the rules that map the family's tensor names to our parameter names."""
    shared = "model.shared" if config.ties_embeddings else "model.encoder.embed_tokens"
    parts = {"source_embeddings.tokens": shared, "target_embeddings.tokens": "model.decoder.embed_tokens"}
    if kind in PRE_NORM:
        parts |= {f"{stack}.norm": f"model.{stack}.layer_norm" for stack in ("encoder", "decoder")}
    for ours, theirs in (("source", "encoder"), ("target", "decoder")):
        parts[f"{ours}_embeddings.positions"] = f"model.{theirs}.embed_positions"
        parts[f"{ours}_embeddings.norm"] = f"model.{theirs}.layernorm_embedding"
    return [
        *module_rules(parts),
        *layer_rules("encoder.layers", "model.encoder.layers", config.n_encoder_layers, LAYER),
        *layer_rules("decoder.layers", "model.decoder.layers", config.n_decoder_layers, LAYER),
        NameRule("lm_head.weight", ("head.out_proj.weight",)),
        NameRule("final_logits_bias", ("head.out_proj.bias",), leading_axis=True),
        *_write_only_rules(kind, config),
    ]


def _write_only_rules(kind: str, config: ModelConfig) -> Iterator[NameRule]:
    """Yield rules for embedding tables that HF expects in the file but does not use, if the output is not tied."""
    source = ("source_embeddings.tokens.weight",)
    if config.tie == "embeddings":
        for side in SIDES:
            yield NameRule(f"model.{side}", source, write_only=True)
    if config.tie == "none" and kind != "marian":
        yield NameRule("model.shared.weight", source, write_only=True)


def _sinusoids(config: ModelConfig) -> Tensor:
    """Return the sinusoidal positions of Marian and Pegasus, (max_len, d_model)."""
    from glassformer.nn import sinusoids

    return sinusoids(config.max_len or 0, config.d_model, halves=True)


def _family(kind: str) -> Family:
    return Family(
        model_type=kind,
        kind="encoder_decoder",
        prefix="model.",
        read_config=lambda values, names: read_config(kind, values, names),
        write_config=lambda config: write_config(kind, config),
        table=lambda config: table(kind, config),
        copies=[
            *((f"model.{side}", "model.shared.weight") for side in SIDES),
            ("lm_head.weight", "model.shared.weight" if kind != "marian" else "model.decoder.embed_tokens.weight"),
            *([("lm_head.weight", "model.shared.weight")] if kind == "marian" else []),
        ],
        ties_by_tensors=True,
        computed=dict.fromkeys(POSITIONS, _sinusoids) if kind in WITH_SINUSOIDS else {},
        stores_computed=kind == "pegasus",
        rewrites=[SINES_FIRST] if kind in WITH_SINUSOIDS else [],
        ignored=IGNORED.get(kind, r"(?!)"),
    )


FAMILIES = [_family(kind) for kind in CLASSES]
