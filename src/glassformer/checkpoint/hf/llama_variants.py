"""Differences between the HF families with Llama's names: defaults of `config.json`, settings and tensor layouts.

`llama.py` reads and writes what they have in common.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from glassformer.checkpoint.hf.layer_kinds import (
    Windows,
    pattern_windows,
    qwen_windows,
    read_windows,
    unrotated_layers,
    write_windows,
)
from glassformer.checkpoint.hf.values import read_bool, read_float, read_int, require
from glassformer.models import ModelConfig

Values = Mapping[str, Any]
ALL_HEADS = "all_heads"


def _nothing(_: Any) -> dict[str, Any]:
    return {}


def _no_windows(_: Values) -> Windows:
    return Windows(None, ())


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A family with Llama's names. Defaults are HF's, for keys that are absent in `config.json`."""

    name: str
    """Prefix of HF's class names."""
    body: str = ""
    """Prefix of HF's class without a head, if it is another one."""
    kv_heads: int | None = None
    """Default of `num_key_value_heads`; None is as many as query heads."""
    head_dim: int | None = None
    """Default of `head_dim`; None is the width divided by the number of heads."""
    norm: Literal["rms", "layer", "offset_rms"] = "rms"
    eps_key: str | None = "rms_norm_eps"
    """Key of the norms' epsilon; None if it is fixed."""
    eps: float = 1e-6
    theta: float = 10000.0
    local_theta: float | None = None
    """Default base of layers with a window, if it differs from that of other layers; None if it does not."""
    rotated_part: float | None = None
    """Default of `partial_rotary_factor`; None if the family does not read it."""
    is_tied: bool = False
    activation_key: str = "hidden_act"
    activation: str = "silu"
    has_attention_bias: bool = False
    """Whether the family reads `attention_bias`."""
    has_ffn_bias: bool = False
    """Whether the family reads `mlp_bias`."""
    is_fused: bool = False
    """Whether one tensor holds Q, K and V, and one both inputs of the feed-forward network, as in Phi-3."""
    in_pairs: bool = False
    """Whether rotary positions turn neighboring features, as in Cohere."""
    folds_scale: bool = True
    """Whether a factor on the embeddings must be folded into the table on export, because HF's model has none."""
    fields: Callable[[Values], dict[str, Any]] = _nothing
    """Fields of `ModelConfig` that differ from Llama's, from `config.json`."""
    values: Callable[[ModelConfig], dict[str, Any]] = _nothing
    """Values of `config.json` that the family has in addition."""
    windows: Callable[[Values], Windows] = _no_windows
    writes_windows: Callable[[ModelConfig], dict[str, Any]] = _nothing


def _mistral_windows(values: Values) -> Windows:
    # HF's default if the key is absent; null means no window.
    return Windows(read_int(values, "sliding_window", default=None if "sliding_window" in values else 4096), ())


def write_window(config: ModelConfig) -> dict[str, Any]:
    """Return HF's value for a window that all layers have."""
    return {"sliding_window": config.sliding_window}


def write_qwen_windows(config: ModelConfig) -> dict[str, Any]:
    """Return HF's values for the windows of Qwen's layers."""
    is_last = config.global_layers == tuple(range(len(config.global_layers)))
    first = len(config.global_layers) if is_last else 0  # for HF before it had layer_types
    return {
        **write_windows(config),
        "use_sliding_window": config.sliding_window is not None,
        "max_window_layers": first,
    }


def _stablelm(values: Values) -> dict[str, Any]:
    require(values, "qk_layernorm", False)
    is_parallel = read_bool(values, "use_parallel_residual", default=False)
    return {
        "qkv_bias": read_bool(values, "use_qkv_bias", default=False),
        "parallel_ffn": "one_norm" if is_parallel else "none",
        "dropout": read_float(values, "hidden_dropout", default=0.0),
    }


def _cohere(values: Values) -> dict[str, Any]:
    require(values, "use_qk_norm", False)
    factor = read_float(values, "logit_scale", default=0.0625)
    return {"norm_bias": False, "parallel_ffn": "one_norm", "output_multiplier": factor}


def _cohere2(values: Values) -> dict[str, Any]:
    windows = pattern_windows(values, 4, key="sliding_window_pattern")
    n_layers = read_int(values, "num_hidden_layers")
    global_layers = windows.global_layers if windows.window is not None else tuple(range(n_layers))
    return _cohere(values) | {"unrotated_layers": global_layers}


def _granite(values: Values) -> dict[str, Any]:
    factor = read_float(values, "embedding_multiplier", default=1.0)
    return {
        "embedding_multiplier": None if factor == 1.0 else factor,
        "residual_multiplier": read_float(values, "residual_multiplier", default=1.0),
        "attention_scale": read_float(values, "attention_multiplier", default=1.0),
        "output_multiplier": 1.0 / (read_float(values, "logits_scaling", default=1.0) or 1.0),
    }


def _inverse(factor: float) -> float:
    """Return 1 / factor, as a short decimal if that has the same inverse."""
    return next((x for x in (round(1.0 / factor, 6), 1.0 / factor) if x and 1.0 / x == factor), 1.0 / factor)


def _write_granite(config: ModelConfig) -> dict[str, Any]:
    return {
        "embedding_multiplier": config.embedding_factor,
        "residual_multiplier": config.residual_multiplier,
        "attention_multiplier": config.scale,
        "logits_scaling": _inverse(config.output_multiplier),
    }


def _phi3(values: Values) -> dict[str, Any]:
    return {
        "dropout": read_float(values, "resid_pdrop", default=0.0),
        "embedding_dropout": read_float(values, "embd_pdrop", default=0.0),
    }


def _write_phi3(config: ModelConfig) -> dict[str, Any]:
    original = config.rope_original_len if config.rope_scaling == "longrope" else config.max_len
    values = {"resid_pdrop": config.dropout, "embd_pdrop": config.embedding_dropout}
    return values | {"original_max_position_embeddings": original, "pad_token_id": None}


def _gemma(values: Values) -> dict[str, Any]:
    require(values, "use_bidirectional_attention", False)
    return {"scale_embeddings": True}


def _gemma_2_and_3(values: Values) -> dict[str, Any]:
    scalar = read_float(values, "query_pre_attn_scalar", default=256.0)
    if scalar <= 0:
        raise ValueError(f"config.json has query_pre_attn_scalar={scalar:g}: expected a number above 0")
    return {**_gemma(values), "norm_placement": "sandwich", "attention_scale": scalar**-0.5}


def _softcap(values: Values, key: str, default: float | None) -> float | None:
    if values.get(key, default) is None:
        return None
    return read_float(values, key, default=default or 0.0)


def _gemma2(values: Values) -> dict[str, Any]:
    return {
        **_gemma_2_and_3(values),
        "attention_softcap": _softcap(values, "attn_logit_softcapping", 50.0),
        "output_softcap": _softcap(values, "final_logit_softcapping", 30.0),
    }


def _gemma3(values: Values) -> dict[str, Any]:
    require(values, "attn_logit_softcapping", None)  # HF reads the key but does not use it
    softcap = _softcap(values, "final_logit_softcapping", None)
    return {**_gemma_2_and_3(values), "qk_norm": True, "output_softcap": softcap}


def _write_gemma(config: ModelConfig) -> dict[str, Any]:
    scalar = config.scale**-2
    return {
        # HF wants a whole number; a factor that has none cannot be expressed.
        "query_pre_attn_scalar": round(scalar) if round(scalar) and round(scalar) ** -0.5 == config.scale else scalar,
        "final_logit_softcapping": config.output_softcap,
    }


def _write_gemma2(config: ModelConfig) -> dict[str, Any]:
    return {**_write_gemma(config), "attn_logit_softcapping": config.attention_softcap}


def _olmo(values: Values) -> dict[str, Any]:
    clip = read_float(values, "clip_qkv", default=0.0)
    return {"norm_bias": False, "norm_weight": False, "clip_qkv": clip or None}


def _olmo2(values: Values) -> dict[str, Any]:
    return {"norm_placement": "output", "qk_norm": True, "qk_norm_over": ALL_HEADS}


def _smollm3_windows(values: Values) -> Windows:
    window = read_int(values, "sliding_window", default=None)
    flat = {*unrotated_layers(values)}
    has_windows = read_bool(values, "use_sliding_window", default=False) and window is not None
    return read_windows(values, is_sliding=lambda index: has_windows and index in flat, window=window)


def _write_smollm3(config: ModelConfig) -> dict[str, Any]:
    flags = [int(index not in config.unrotated_layers) for index in range(config.n_decoder_layers)]
    has_windows = config.sliding_window is not None
    return {"no_rope_layers": flags, "use_sliding_window": has_windows, "pad_token_id": None}


QWEN: dict[str, Any] = {"windows": qwen_windows, "writes_windows": write_qwen_windows}
COHERE: dict[str, Any] = {
    "norm": "layer",
    "eps_key": "layer_norm_eps",
    "eps": 1e-5,
    "is_tied": True,
    "has_attention_bias": True,
    "in_pairs": True,
    "values": lambda config: {"logit_scale": config.output_multiplier},
}
GEMMA: dict[str, Any] = {
    "norm": "offset_rms",
    "is_tied": True,
    "has_attention_bias": True,
    "activation": "gelu_new",
    "head_dim": 256,
    "folds_scale": False,
}
GEMMA_NOW = GEMMA | {"kv_heads": 4, "activation_key": "hidden_activation", "writes_windows": write_windows}
VARIANTS: dict[str, Variant] = {
    "llama": Variant(name="Llama", has_attention_bias=True, has_ffn_bias=True),
    "mistral": Variant(name="Mistral", kv_heads=8, windows=_mistral_windows, writes_windows=write_window),
    "qwen2": Variant(name="Qwen2", kv_heads=32, fields=lambda values: {"qkv_bias": True, "out_bias": False}, **QWEN),
    "qwen3": Variant(
        name="Qwen3",
        kv_heads=32,
        head_dim=128,
        has_attention_bias=True,
        fields=lambda values: {"qk_norm": True},
        **QWEN,
    ),
    "phi3": Variant(
        name="Phi3",
        eps=1e-5,
        rotated_part=1.0,
        is_fused=True,
        fields=_phi3,
        values=_write_phi3,
        windows=lambda values: Windows(read_int(values, "sliding_window", default=None), ()),
        writes_windows=write_window,
    ),
    "stablelm": Variant(
        name="StableLm",
        kv_heads=32,
        norm="layer",
        eps_key="layer_norm_eps",
        eps=1e-5,
        rotated_part=0.25,
        fields=_stablelm,
        values=lambda config: {
            "use_qkv_bias": config.qkv_bias,
            "hidden_dropout": config.dropout,
            "use_parallel_residual": config.parallel_ffn != "none",
        },
    ),
    "granite": Variant(
        name="Granite",
        has_attention_bias=True,
        has_ffn_bias=True,
        folds_scale=False,
        fields=_granite,
        values=_write_granite,
    ),
    "gemma": Variant(name="Gemma", kv_heads=16, fields=_gemma, **GEMMA),
    "gemma2": Variant(
        name="Gemma2",
        fields=_gemma2,
        values=_write_gemma2,
        windows=lambda values: pattern_windows(values, 2),
        **GEMMA_NOW,
    ),
    "gemma3_text": Variant(
        name="Gemma3",
        body="Gemma3Text",
        theta=1e6,
        local_theta=1e4,
        fields=_gemma3,
        values=_write_gemma,
        windows=lambda values: pattern_windows(values, 6, key="sliding_window_pattern"),
        **GEMMA_NOW,
    ),
    "cohere": Variant(name="Cohere", theta=500000.0, fields=_cohere, **COHERE),
    "cohere2": Variant(
        name="Cohere2",
        fields=_cohere2,
        windows=lambda values: pattern_windows(values, 4, key="sliding_window_pattern"),
        writes_windows=write_windows,
        **COHERE,
    ),
    "olmo": Variant(
        name="Olmo",
        norm="layer",
        eps_key=None,
        eps=1e-5,
        has_attention_bias=True,
        fields=_olmo,
        values=lambda config: {"clip_qkv": config.clip_qkv},
    ),
    "olmo2": Variant(name="Olmo2", eps=1e-5, has_attention_bias=True, fields=_olmo2),
    "olmo3": Variant(
        name="Olmo3",
        eps=1e-5,
        theta=500000.0,
        local_theta=500000.0,
        has_attention_bias=True,
        fields=_olmo2,
        windows=lambda values: pattern_windows(values, 4),
        writes_windows=write_windows,
    ),
    "smollm3": Variant(
        name="SmolLM3",
        kv_heads=4,
        theta=2e6,
        is_tied=True,
        has_attention_bias=True,
        has_ffn_bias=True,
        fields=lambda values: {"unrotated_layers": unrotated_layers(values)},
        values=_write_smollm3,
        windows=_smollm3_windows,
        writes_windows=write_windows,
    ),
}
