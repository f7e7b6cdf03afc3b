"""Checks of a model config: values of different fields that contradict each other."""

import math
from typing import Any

from glassformer.base.checks import check_divides, shown

ModelConfig = Any
"""The config class, which imports this module."""


def check_config(config: ModelConfig) -> None:
    """Raise ValueError if values of the config contradict each other. Each value fits the type of its field already."""
    _check_sizes(config)
    _check_combinations(config)
    _check_rotary(config)
    _check_layer_kinds(config)
    _check_experts(config)
    _check_head(config)


def _check_sizes(config: ModelConfig) -> None:
    if config.head_size < 1:
        raise ValueError(f"n_heads={config.n_heads} with d_model={config.d_model}: expected n_heads of at most d_model")
    if not math.isfinite(config.scale):
        raise ValueError(f"attention_scale={config.attention_scale}: expected a finite number")


def _check_combinations(config: ModelConfig) -> None:
    if not config.n_encoder_layers and not config.n_decoder_layers:
        raise ValueError("n_encoder_layers=0 and n_decoder_layers=0: expected at least one layer")
    if config.head_dim is None:
        check_divides("n_heads", config.n_heads, "d_model", config.d_model)
    check_divides("n_kv_heads", config.kv_heads, "n_heads", config.n_heads)
    if config.positions in ("sinusoidal", "learned") and config.max_len is None:
        raise ValueError(f"max_len=None with positions={config.positions!r}: expected the length of the position table")
    if config.position_offset and config.positions not in ("learned", "sinusoidal"):
        raise ValueError(
            f"position_offset={config.position_offset} with positions={config.positions!r}: expected 0, or positions "
            "'learned' or 'sinusoidal'"
        )
    if config.sinusoid_full_range and (config.table_width % 2 or config.table_width < 4):
        raise ValueError(f"sinusoid_full_range=True with a width of {config.table_width}: expected an even one above 2")
    if config.relative_bias and config.positions not in ("learned", "sinusoidal", "rotary", "none"):
        raise ValueError(
            f"relative_bias=True with positions={config.positions!r}: expected 'learned', 'sinusoidal', 'rotary' or "
            "'none'"
        )
    if config.has_relative_bias:
        least = 4 if config.n_encoder_layers else 2
        if config.relative_buckets < least or config.relative_max_distance <= config.relative_buckets // 2:
            raise ValueError(
                f"relative_buckets={config.relative_buckets}, relative_max_distance={config.relative_max_distance}: "
                f"expected at least {least} buckets and a distance above half their number"
            )
    if config.positions == "disentangled":
        _check_disentangled(config)
    if config.conv_kernel is not None and (config.kind != "encoder" or config.conv_kernel % 2 == 0):
        raise ValueError(
            f"conv_kernel={config.conv_kernel} for kind {config.kind!r}: expected None, or an odd number for an encoder"
        )
    is_plain = config.norm_placement == "pre" and not config.share_layers and config.parallel_ffn == "none"
    if not config.first_norm and not (config.kind == "encoder" and is_plain):
        raise ValueError(
            f"first_norm=False with kind {config.kind!r}, norm_placement={config.norm_placement!r}, share_layers="
            f"{config.share_layers}, parallel_ffn={config.parallel_ffn!r}: expected an encoder, 'pre', False, 'none'"
        )
    if config.conv_kernel is not None and config.share_layers:
        raise ValueError(f"conv_kernel={config.conv_kernel} with share_layers=True: expected one of them")
    if config.token_types and config.kind == "encoder_decoder":
        raise ValueError(
            f"token_types={config.token_types} for kind 'encoder_decoder', which does not support them: expected 0"
        )
    if config.source_vocab_size is not None and config.kind != "encoder_decoder":
        raise ValueError(f"source_vocab_size={config.source_vocab_size} for kind {config.kind!r}: expected None")
    if config.ties_embeddings and config.kind != "encoder_decoder":
        raise ValueError(
            f"tie={config.tie!r} for kind {config.kind!r}, which has one embedding table: expected 'output' or 'none'"
        )
    if config.ties_embeddings and config.source_vocab != config.vocab_size:
        raise ValueError(
            f"tie={config.tie!r} with source_vocab_size={config.source_vocab} and vocab_size={config.vocab_size}: "
            "expected equal sizes"
        )
    if config.scale_embeddings and config.embedding_multiplier is not None:
        raise ValueError(
            f"embedding_multiplier={config.embedding_multiplier} with scale_embeddings=True: expected one of the two"
        )
    if not config.norm_bias and config.norm == "mean_std":
        raise ValueError("norm_bias=False with norm='mean_std', which has a bias: expected True, or another norm")
    if not config.norm_weight and (
        config.norm in ("offset_rms", "mean_std") or (config.norm == "layer" and config.norm_bias)
    ):
        name = "norm_bias" if config.norm == "layer" else "norm"
        raise ValueError(
            f"norm_weight=False with {name}={getattr(config, name)!r}: expected norm='rms', or 'layer' with "
            "norm_bias=False"
        )
    if config.parallel_ffn != "none" and (config.norm_placement != "pre" or config.kind == "encoder_decoder"):
        name = "kind" if config.kind == "encoder_decoder" else "norm_placement"
        raise ValueError(
            f"parallel_ffn={config.parallel_ffn!r} with {name}={getattr(config, name)!r}: expected "
            "norm_placement='pre' and an encoder or a decoder alone, or parallel_ffn='none'"
        )
    if config.scale_by_depth and config.share_layers:
        raise ValueError("scale_by_depth=True with share_layers=True, whose layers are one: expected one of them")


def _check_disentangled(config: ModelConfig) -> None:
    for name, is_fine, expected in (
        ("n_decoder_layers", config.kind == "encoder", "0, an encoder"),
        ("n_kv_heads", config.kv_heads == config.n_heads, "as many as n_heads"),
        ("qk_norm", not config.qk_norm, "False"),
        ("clip_qkv", config.clip_qkv is None, "None"),
        ("scale_by_depth", not config.scale_by_depth, "False"),
        ("relative_buckets", config.relative_buckets >= 4, "4 or more"),
        (
            "relative_max_distance",
            not config.relative_log or config.relative_max_distance > config.relative_buckets // 2 + 1,
            "more than half of relative_buckets",
        ),
    ):
        if not is_fine:
            raise ValueError(f"{name}={getattr(config, name)} with positions='disentangled': expected {expected}")


def _check_rotary(config: ModelConfig) -> None:
    kind = config.rope_scaling
    if config.positions != "rotary":
        if kind != "none" or config.rope_width is not None:
            name = "rope_width" if kind == "none" else "rope_scaling"
            raise ValueError(
                f"{name}={getattr(config, name)!r} with positions={config.positions!r}: expected positions='rotary'"
            )
        return
    if config.rope_width is None and config.head_size % 2:
        raise ValueError(f"positions='rotary' with heads {config.head_size} wide: expected an even head size")
    if config.rope_width is not None and (config.rope_width % 2 or config.rope_width > config.head_size):
        raise ValueError(f"rope_width={config.rope_width}: expected an even number of at most {config.head_size}")
    if kind in ("llama3", "yarn", "longrope") and (config.rope_original_len or 0) < 2:
        raise ValueError(f"rope_original_len={config.rope_original_len} with rope_scaling={kind!r}: expected 2 or more")
    if kind == "llama3" and config.rope_high_rotations <= config.rope_low_rotations:
        raise ValueError(
            f"rope_high_rotations={config.rope_high_rotations}: expected more than rope_low_rotations, "
            f"{config.rope_low_rotations}"
        )
    if kind == "yarn" and config.rope_theta <= 1:
        raise ValueError(f"rope_theta={config.rope_theta} with rope_scaling='yarn': expected more than 1")
    for name in ("rope_short_divisors", "rope_long_divisors"):
        divisors = getattr(config, name)
        if (divisors is not None) != (kind == "longrope"):
            raise ValueError(
                f"{name}={shown(divisors)} with rope_scaling={kind!r}: expected divisors with 'longrope' only"
            )
        if divisors is not None and (len(divisors) != config.rope_size // 2 or min(divisors) <= 0):
            raise ValueError(f"{name}={shown(divisors)}: expected {config.rope_size // 2} numbers above 0")


def _check_layer_kinds(config: ModelConfig) -> None:
    depth = max(config.n_encoder_layers, config.n_decoder_layers)
    for name in ("global_layers", "unrotated_layers", "dense_layers"):
        numbers = getattr(config, name)
        if numbers and (max(numbers) >= depth or [*numbers] != sorted({*numbers})):
            raise ValueError(f"{name}={shown(numbers)}: expected ascending numbers below {depth}, the number of layers")
    for name, value in (("global_layers", config.global_layers), ("local_rope_theta", config.local_rope_theta)):
        if value and config.sliding_window is None:
            raise ValueError(f"{name}={shown(value)} with sliding_window=None: expected a sliding window")
    for name, value in (("local_rope_theta", config.local_rope_theta), ("unrotated_layers", config.unrotated_layers)):
        if value and config.positions != "rotary":
            raise ValueError(f"{name}={shown(value)} with positions={config.positions!r}: expected positions='rotary'")


def _check_experts(config: ModelConfig) -> None:
    if not config.n_experts:
        for name in ("expert_d_ff", "shared_expert_d_ff", "dense_layers"):
            if getattr(config, name):
                raise ValueError(f"{name}={shown(getattr(config, name))} with n_experts=0: expected experts")
        return
    if config.kind != "decoder":
        raise ValueError(f"n_experts={config.n_experts} for kind {config.kind!r}: expected 0, or a decoder")
    if config.experts_per_token > config.n_experts:
        raise ValueError(
            f"experts_per_token={config.experts_per_token}: expected at most n_experts, {config.n_experts}"
        )
    if config.dense_layers and config.share_layers:
        raise ValueError(f"dense_layers={shown(config.dense_layers)} with share_layers=True: expected one of them")


def _check_head(config: ModelConfig) -> None:
    if config.head in ("sequence_class", "token_class") and config.n_labels is None:
        raise ValueError(f"n_labels=None with head={config.head!r}: expected the number of classes")
    if config.ties_output and config.head != "language_model":
        raise ValueError(
            f"tie={config.tie!r} with head={config.head!r}, which has no output projection: expected tie='none'"
            + (" or 'embeddings'" if config.kind == "encoder_decoder" else "")
        )
    if config.n_labels is not None and config.head not in ("sequence_class", "token_class"):
        raise ValueError(f"n_labels={config.n_labels} with head={config.head!r}, which has no classes: expected None")
    if config.head_transform and config.head == "none":
        raise ValueError("head_transform=True with head='none', which does not support it: expected False")
    for name, default in (("head_activation", None), ("head_norm", None), ("head_bias", True), ("head_width", None)):
        if getattr(config, name) != default and not config.head_transform:
            raise ValueError(
                f"{name}={getattr(config, name)!r} with head={config.head!r} and head_transform=False: expected "
                f"{default}, or head_transform=True"
            )
    for name, default in (("head_width", None), ("unit_length", True)):
        if getattr(config, name) != default and config.head != "embedding":
            raise ValueError(
                f"{name}={getattr(config, name)!r} with head={config.head!r}: expected {default}, or head='embedding'"
            )
    if config.head == "embedding" and config.head_norm:
        raise ValueError("head_norm=True with head='embedding', which has no norm: expected None")
    if config.pooling is not None and config.head not in ("sequence_class", "embedding"):
        raise ValueError(f"pooling={config.pooling!r} with head={config.head!r}, which does not pool: expected None")
    if config.table_width != config.d_model and config.ties_output and not config.head_transform:
        raise ValueError(
            f"embedding_width={config.embedding_width} tied to the output without head_transform: expected "
            "head_transform=True, which projects back to that width"
        )
