"""HF's decoders with a mixture of experts and Llama's names: Mixtral, Qwen2-MoE, Qwen3-MoE and OLMoE.

Their differences from Llama are a `Variant` each, as in `llama_variants.py`, and the names of the experts' tensors.
"""

from typing import Any

from glassformer.checkpoint.hf.layer_kinds import DEFAULT_WINDOW, Windows, count_layers, read_windows
from glassformer.checkpoint.hf.llama_variants import ALL_HEADS, Values, Variant, write_qwen_windows, write_window
from glassformer.checkpoint.hf.values import UnsupportedModelError, read_bool, read_float, read_int, require, shown
from glassformer.models import ModelConfig

PARTS = ("gate_proj", "up_proj", "down_proj")
MIXTRAL_PARTS = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}


def expert_names(kind: str, n_experts: int) -> dict[str, str]:
    """Return HF's name for each module of a layer's experts, by our name for it."""
    block = "block_sparse_moe" if kind == "mixtral" else "mlp"
    names = {"ffn.router": f"{block}.gate", "ffn.shared_gate": f"{block}.shared_expert_gate"}
    names |= {f"ffn.shared_expert.{part}": f"{block}.shared_expert.{part}" for part in PARTS}
    for index in range(n_experts):
        for part in PARTS:
            theirs = MIXTRAL_PARTS[part] if kind == "mixtral" else part
            names[f"ffn.experts.{index}.{part}"] = f"{block}.experts.{index}.{theirs}"
    return names


def _experts(values: Values, key: str, *, n: int, per_token: int, balance: float) -> dict[str, Any]:
    """Return the fields that all four families have. The arguments are HF's key of the number, and HF's defaults."""
    n_experts = read_int(values, key, "num_experts", "num_local_experts", default=n)  # HF takes both names
    if n_experts < 1:
        raise ValueError(f"config.json has {key}={n_experts}: expected at least 1")
    return {
        "n_experts": n_experts,
        "experts_per_token": read_int(values, "num_experts_per_tok", default=per_token),
        "expert_balance": read_float(values, "router_aux_loss_coef", default=balance),
    }


def _write_experts(config: ModelConfig, key: str) -> dict[str, Any]:
    return {
        key: config.n_experts,
        "num_experts_per_tok": config.experts_per_token,
        "router_aux_loss_coef": config.expert_balance,
    }


def _mixtral(values: Values) -> dict[str, Any]:
    require(values, "router_jitter_noise", 0.0)
    return _experts(values, "num_local_experts", n=8, per_token=2, balance=0.001)


def _write_mixtral(config: ModelConfig) -> dict[str, Any]:
    return {**_write_experts(config, "num_local_experts"), "intermediate_size": config.expert_width}


def _normalizes(values: Values) -> dict[str, Any]:
    return {"normalize_expert_weights": read_bool(values, "norm_topk_prob", default=False)}


def _olmoe(values: Values) -> dict[str, Any]:
    require(values, "clip_qkv", None)  # HF clips after the norm, and ours is before it
    experts = _experts(values, "num_experts", n=64, per_token=8, balance=0.01)
    return {**experts, **_normalizes(values), "qk_norm": True, "qk_norm_over": ALL_HEADS}


def _write_olmoe(config: ModelConfig) -> dict[str, Any]:
    values = {**_write_experts(config, "num_experts"), "intermediate_size": config.expert_width}
    return {**values, "norm_topk_prob": config.normalize_expert_weights, "pad_token_id": None}


def _dense_layers(values: Values) -> tuple[int, ...]:
    """Return the layers without experts: those of `mlp_only_layers`, and all but every n-th."""
    n_layers, step = count_layers(values), read_int(values, "decoder_sparse_step", default=1)
    if step < 1:
        raise ValueError(f"config.json has decoder_sparse_step={step}: expected at least 1")
    plain = values.get("mlp_only_layers") or []
    if not isinstance(plain, list) or any(type(one) is not int for one in plain):
        raise UnsupportedModelError(
            f"config.json has mlp_only_layers={shown(plain)}: expected a list of numbers of layers"
        )
    return tuple(index for index in range(n_layers) if index in plain or (index + 1) % step)


def _qwen(values: Values, *, n: int, per_token: int, width: int) -> dict[str, Any]:
    return {
        **_experts(values, "num_experts", n=n, per_token=per_token, balance=0.001),
        **_normalizes(values),
        "expert_d_ff": read_int(values, "moe_intermediate_size", default=width),
        "dense_layers": _dense_layers(values),
    }


def _qwen2_moe(values: Values) -> dict[str, Any]:
    return {
        **_qwen(values, n=60, per_token=4, width=1408),
        "shared_expert_d_ff": read_int(values, "shared_expert_intermediate_size", default=5632),
        "qkv_bias": read_bool(values, "qkv_bias", default=True),
        "out_bias": False,
    }


def _write_qwen(config: ModelConfig) -> dict[str, Any]:
    return {
        **_write_experts(config, "num_experts"),
        "moe_intermediate_size": config.expert_width,
        "norm_topk_prob": config.normalize_expert_weights,
        "decoder_sparse_step": 1,
        "mlp_only_layers": list(config.dense_layers),
    }


def _write_qwen2_moe(config: ModelConfig) -> dict[str, Any]:
    shared = {"shared_expert_intermediate_size": config.shared_expert_d_ff or 0, "qkv_bias": config.qkv_bias}
    return {**_write_qwen(config), **shared}


def _given_window(values: Values) -> int | None:
    """Return the window of Qwen's layers, if they have one."""
    # HF's default if the key is absent; null means no window.
    window: int | None = read_int(
        values, "sliding_window", default=None if "sliding_window" in values else DEFAULT_WINDOW
    )
    return window if read_bool(values, "use_sliding_window", default=False) else None


def _qwen2_moe_windows(values: Values) -> Windows:
    """Return the windows of Qwen2-MoE: by default, every other layer of the first `max_window_layers` has one."""
    uses, first = (
        read_bool(values, "use_sliding_window", default=False),
        read_int(values, "max_window_layers", default=28),
    )
    return read_windows(
        values,
        is_sliding=lambda index: uses and index % 2 == 0 and index < first,
        window=_given_window(values),
    )


EXPERT_VARIANTS: dict[str, Variant] = {
    "mixtral": Variant(
        name="Mixtral",
        kv_heads=8,
        eps=1e-5,
        theta=1e6,
        fields=_mixtral,
        values=_write_mixtral,
        windows=lambda values: Windows(read_int(values, "sliding_window", default=None), ()),
        writes_windows=write_window,
    ),
    "qwen2_moe": Variant(
        name="Qwen2Moe",
        kv_heads=16,
        fields=_qwen2_moe,
        values=_write_qwen2_moe,
        windows=_qwen2_moe_windows,
        writes_windows=write_qwen_windows,
    ),
    "qwen3_moe": Variant(
        name="Qwen3Moe",
        kv_heads=4,
        has_attention_bias=True,
        fields=lambda values: {**_qwen(values, n=128, per_token=8, width=768), "qk_norm": True},
        values=_write_qwen,
        windows=lambda values: Windows(_given_window(values), ()),
        writes_windows=lambda config: {**write_window(config), "use_sliding_window": config.sliding_window is not None},
    ),
    "olmoe": Variant(name="Olmoe", eps=1e-5, has_attention_bias=True, fields=_olmoe, values=_write_olmoe),
}
