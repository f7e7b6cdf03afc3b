"""Configs of well-known model families, such as `preset("gpt2", n_decoder_layers=6)`."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from glassformer.base.names import suggestion
from glassformer.models.config import ModelConfig
from glassformer.models.decoder_presets import DECODERS


def transformer_base() -> ModelConfig:
    """Return the config of the base model of Vaswani et al. (2017, table 3).

    Source and target share a vocabulary of 37,000 byte-pair tokens.
    """
    return ModelConfig(
        vocab_size=37000,
        n_encoder_layers=6,
        n_decoder_layers=6,
        scale_embeddings=True,
        tie="all",
        head="language_model",
        output_bias=False,
        embedding_dropout=0.1,
    )


def transformer_big() -> ModelConfig:
    """Return the config of the big model of Vaswani et al. (2017, table 3)."""
    return replace(transformer_base(), d_model=1024, d_ff=4096, n_heads=16, dropout=0.3, embedding_dropout=0.3)


def bert_base() -> ModelConfig:
    """Return the config of BERT base (Devlin et al. 2019) with its masked-language-model head."""
    return ModelConfig(
        vocab_size=30522,
        n_encoder_layers=12,
        d_model=768,
        n_heads=12,
        d_ff=3072,
        max_len=512,
        activation="gelu",
        norm_eps=1e-12,
        positions="learned",
        token_types=2,
        embedding_norm=True,
        tie="output",
        head="language_model",
        head_transform=True,
        attention_dropout=0.1,
        embedding_dropout=0.1,
        init="normal",
    )


def deberta_v3_base() -> ModelConfig:
    """Return the config of DeBERTa v3 base (He et al. 2023), with disentangled attention."""
    return replace(
        bert_base(),
        vocab_size=128100,
        positions="disentangled",
        relative_buckets=256,
        relative_max_distance=512,
        token_types=0,
        norm_eps=1e-7,
    )


def deberta_base() -> ModelConfig:
    """Return the config of DeBERTa v1 base (He et al. 2021), which projects relative positions separately."""
    return replace(
        deberta_v3_base(),
        vocab_size=50265,
        relative_buckets=512,
        relative_log=False,
        relative_norm=False,
        share_relative_proj=False,
        key_bias=False,
    )


def deberta_v2_xlarge() -> ModelConfig:
    """Return the config of DeBERTa v2 xlarge (He et al. 2021), with a convolution beside the first layer."""
    return replace(
        deberta_v3_base(),
        n_encoder_layers=24,
        d_model=1536,
        n_heads=24,
        d_ff=6144,
        conv_kernel=3,
        conv_activation="gelu",
    )


def modernbert_base() -> ModelConfig:
    """Return the config of ModernBERT base (Warner et al. 2024), with windows in two of three layers."""
    return replace(
        bert_base(),
        vocab_size=50368,
        n_encoder_layers=22,
        d_ff=1152,
        max_len=8192,
        gated=True,
        qkv_bias=False,
        out_bias=False,
        ffn_bias=False,
        norm_placement="pre",
        norm_eps=1e-5,
        norm_bias=False,
        first_norm=False,
        positions="rotary",
        rope_theta=160000.0,
        local_rope_theta=10000.0,
        sliding_window=65,
        global_layers=(0, 3, 6, 9, 12, 15, 18, 21),
        token_types=0,
        head_norm=True,
        head_bias=False,
        dropout=0.0,
        attention_dropout=0.0,
        embedding_dropout=0.0,
    )


def mpnet_base() -> ModelConfig:
    """Return the config of MPNet base (Song et al. 2020), with learned positions and relative biases."""
    return replace(
        bert_base(),
        vocab_size=30527,
        position_offset=2,
        token_types=0,
        relative_bias=True,
        relative_buckets=32,
        relative_max_distance=128,
        norm_eps=1e-5,
    )


def nomic_bert() -> ModelConfig:
    """Return the config of NomicBERT (Nussbaum et al. 2024), a BERT with rotary positions and SwiGLU."""
    return replace(
        bert_base(),
        vocab_size=30528,
        max_len=2048,
        positions="rotary",
        rope_theta=1000.0,
        activation="silu",
        gated=True,
        qkv_bias=False,
        out_bias=False,
        ffn_bias=False,
        dropout=0.0,
        attention_dropout=0.0,
        embedding_dropout=0.0,
    )


def albert_base() -> ModelConfig:
    """Return the config of ALBERT base v2 (Lan et al. 2020).

    All layers share weights, and the embeddings are narrower than the model.
    """
    return replace(
        bert_base(),
        vocab_size=30000,
        embedding_width=128,
        share_layers=True,
        activation="gelu_tanh",
        dropout=0.0,
        attention_dropout=0.0,
        embedding_dropout=0.0,
    )


def t5_small() -> ModelConfig:
    """Return the config of T5 1.0 small (Raffel et al. 2020)."""
    return ModelConfig(
        vocab_size=32128,
        n_encoder_layers=6,
        n_decoder_layers=6,
        d_model=512,
        n_heads=8,
        d_ff=2048,
        max_len=None,
        attention_scale=1.0,
        qkv_bias=False,
        out_bias=False,
        ffn_bias=False,
        norm="rms",
        norm_placement="pre",
        norm_eps=1e-6,
        positions="relative",
        tie="all",
        head="language_model",
        output_bias=False,
        scale_output=True,
        attention_dropout=0.1,
        activation_dropout=0.1,
        embedding_dropout=0.1,
        init="t5",
    )


def t5_v1_1_small() -> ModelConfig:
    """Return the config of T5 1.1 small.

    It has a gated GELU, an untied output projection, and n_heads * head_dim different from d_model.
    """
    return replace(
        t5_small(),
        n_encoder_layers=8,
        n_decoder_layers=8,
        n_heads=6,
        head_dim=64,
        d_ff=1024,
        activation="gelu_tanh",
        gated=True,
        tie="embeddings",
        scale_output=False,
    )


def bart_base() -> ModelConfig:
    """Return the config of BART base (Lewis et al. 2020)."""
    return ModelConfig(
        vocab_size=50265,
        n_encoder_layers=6,
        n_decoder_layers=6,
        d_model=768,
        n_heads=12,
        d_ff=3072,
        max_len=1024,
        activation="gelu",
        positions="learned",
        position_offset=2,
        embedding_norm=True,
        tie="all",
        head="language_model",
        embedding_dropout=0.1,
        init="normal",
    )


def marian() -> ModelConfig:
    """Return the config of Marian (Junczys-Dowmunt et al. 2018) with the settings of the OPUS-MT translation models."""
    return ModelConfig(
        vocab_size=58101,
        n_encoder_layers=6,
        n_decoder_layers=6,
        max_len=512,
        activation="silu",
        sinusoid_halves=True,
        scale_embeddings=True,
        tie="all",
        head="language_model",
        embedding_dropout=0.1,
        init="normal",
    )


def nllb() -> ModelConfig:
    """Return the config of NLLB-200 distilled 600M (NLLB team 2022), an M2M100 (Fan et al. 2021) of 200 languages."""
    return ModelConfig(
        vocab_size=256206,
        n_encoder_layers=12,
        n_decoder_layers=12,
        d_model=1024,
        n_heads=16,
        d_ff=4096,
        max_len=1024,
        activation="relu",
        norm_placement="pre",
        sinusoid_halves=True,
        sinusoid_full_range=True,
        position_offset=2,
        scale_embeddings=True,
        tie="all",
        head="language_model",
        output_bias=False,
        embedding_dropout=0.1,
        attention_dropout=0.1,
        init="normal",
    )


def mbart_large() -> ModelConfig:
    """Return the config of mBART large (Liu et al. 2020), a BART with pre-norm."""
    return replace(
        bart_base(),
        vocab_size=250027,
        n_encoder_layers=12,
        n_decoder_layers=12,
        d_model=1024,
        n_heads=16,
        d_ff=4096,
        norm_placement="pre",
        scale_embeddings=True,
    )


def umt5_small() -> ModelConfig:
    """Return the config of UMT5 small (Chung et al. 2023), a multilingual T5 with relative biases in every layer."""
    return replace(t5_v1_1_small(), vocab_size=256384, share_relative_bias=False)


def tiny(config: ModelConfig) -> ModelConfig:
    """Return `config` at a size for tests: at most 2 layers per stack, width 16 and a vocabulary of 40 tokens."""
    grouped = config.kv_heads != config.n_heads
    return replace(
        config,
        vocab_size=40,
        n_encoder_layers=min(2, config.n_encoder_layers),
        n_decoder_layers=min(2, config.n_decoder_layers),
        d_model=16,
        n_heads=4,
        n_kv_heads=2 if grouped else None,
        head_dim=6 if config.head_dim is not None else None,
        d_ff=24,
        max_len=None if config.max_len is None else 32,
        rope_width=2 if config.rope_width is not None else None,
        sliding_window=5 if config.sliding_window is not None else None,
        global_layers=(1,) if config.global_layers else (),
        n_experts=min(4, config.n_experts),
        experts_per_token=2,
        expert_d_ff=12 if config.expert_d_ff is not None else None,
        shared_expert_d_ff=10 if config.shared_expert_d_ff is not None else None,
        dense_layers=(1,) if config.dense_layers else (),
        unrotated_layers=(1,) if config.unrotated_layers else (),
        embedding_width=8 if config.embedding_width is not None else None,
        relative_buckets=32 if config.relative_bias else 8,  # MPNet has 32 at any size
        relative_max_distance=128 if config.relative_bias else 16,
    )


FULL_SIZE: dict[str, Callable[[], ModelConfig]] = {
    "transformer-base": transformer_base,
    "transformer-big": transformer_big,
    "bert-base": bert_base,
    "albert-base": albert_base,
    "deberta-v3-base": deberta_v3_base,
    "deberta-base": deberta_base,
    "deberta-v2-xlarge": deberta_v2_xlarge,
    "modernbert-base": modernbert_base,
    "mpnet-base": mpnet_base,
    "nomic-bert": nomic_bert,
    **DECODERS,
    "t5-small": t5_small,
    "t5-v1.1-small": t5_v1_1_small,
    "bart-base": bart_base,
    "marian": marian,
    "mbart-large": mbart_large,
    "nllb": nllb,
    "umt5-small": umt5_small,
}
PRESETS: tuple[str, ...] = (*FULL_SIZE, *(f"tiny-{name}" for name in FULL_SIZE))


def preset(name: str, **changes: Any) -> ModelConfig:
    """Return the config of the preset `name`, with `changes` to its fields. The prefix `tiny-` gives a size for tests.

    >>> import glassformer as gf
    >>> gf.preset("llama", n_decoder_layers=4).norm
    'rms'
    >>> gf.preset("lama")
    Traceback (most recent call last):
        ...
    ValueError: unknown preset 'lama': did you mean 'llama'?
    """
    family = name.removeprefix("tiny-")
    if family not in FULL_SIZE:
        raise ValueError(f"unknown preset {name!r}: {suggestion(name, PRESETS)}")
    config = FULL_SIZE[family]()
    if name != family:
        config = tiny(config)
    return ModelConfig.from_dict({**config.to_dict(), **changes})
