"""Configs of well-known decoder families, for `presets.py`: a table of their sizes, then what distinguishes each."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from glassformer.models.config import ModelConfig


class DecoderSizes(NamedTuple):
    """The sizes of a decoder. Without `n_kv_heads`, each head has its own keys and values."""

    vocab_size: int
    n_decoder_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int | None
    d_ff: int
    max_len: int


SIZES = {
    # vocabulary, layers, width, heads, key-value heads, feed-forward width, length
    "gpt2": DecoderSizes(50257, 12, 768, 12, None, 3072, 1024),
    "llama": DecoderSizes(49152, 30, 576, 9, 3, 1536, 8192),
    "pythia": DecoderSizes(50304, 12, 768, 12, None, 3072, 2048),
    "gpt-j": DecoderSizes(50400, 28, 4096, 16, None, 16384, 2048),
    "phi-2": DecoderSizes(51200, 32, 2560, 32, None, 10240, 2048),
    "falcon-7b": DecoderSizes(65024, 32, 4544, 71, 1, 18176, 2048),
    "command-r": DecoderSizes(256000, 40, 8192, 64, None, 22528, 8192),
    "gemma": DecoderSizes(256000, 18, 2048, 8, 1, 16384, 8192),
    "gemma-2": DecoderSizes(256000, 26, 2304, 8, 4, 9216, 8192),
    "gemma-3": DecoderSizes(262144, 26, 1152, 4, 1, 6912, 32768),
    "qwen3": DecoderSizes(151936, 28, 1024, 16, 8, 3072, 40960),
    "olmo": DecoderSizes(50304, 16, 2048, 16, None, 8192, 2048),
    "olmo-2": DecoderSizes(100352, 16, 2048, 16, None, 8192, 4096),
    "smollm3": DecoderSizes(128256, 36, 2048, 16, 4, 11008, 65536),
    "mixtral": DecoderSizes(32000, 32, 4096, 32, 8, 14336, 32768),
    "olmoe": DecoderSizes(50304, 16, 2048, 16, None, 1024, 4096),
    "qwen2-moe": DecoderSizes(151936, 24, 2048, 16, None, 5632, 8192),
}
"""The sizes of the model that each preset is named after."""
NO_DROPOUT: dict[str, Any] = {"dropout": 0.0, "attention_dropout": 0.0, "embedding_dropout": 0.0}
NO_BIASES: dict[str, Any] = {"qkv_bias": False, "out_bias": False, "ffn_bias": False}


def gpt2() -> ModelConfig:
    """Return the config of GPT-2 small (Radford et al. 2019), which has 124 million parameters."""
    return ModelConfig(
        **SIZES["gpt2"]._asdict(),
        activation="gelu_tanh",
        norm_placement="pre",
        positions="learned",
        tie="output",
        head="language_model",
        output_bias=False,
        attention_dropout=0.1,
        embedding_dropout=0.1,
        init="gpt2",
    )


def llama() -> ModelConfig:
    """Return the config of a Llama (Touvron et al. 2023) of the size of SmolLM2-135M.

    It has RMS norm, rotary positions, SwiGLU and grouped-query attention.
    """
    return ModelConfig(
        **SIZES["llama"]._asdict(),
        activation="silu",
        gated=True,
        norm="rms",
        norm_placement="pre",
        positions="rotary",
        rope_theta=100000.0,
        **NO_BIASES,
        tie="output",
        head="language_model",
        output_bias=False,
        dropout=0.0,
        init="normal",
    )


def pythia() -> ModelConfig:
    """Return the config of Pythia 160M (Biderman et al. 2023), a GPT-NeoX (Black et al. 2022).

    Attention and feed-forward layers are parallel, and a quarter of each head is rotated.
    """
    rotary = {"positions": "rotary", "rope_width": 16}
    more = {"activation": "gelu", "parallel_ffn": "two_norms", "tie": "none", "init": "normal"}
    return _like(gpt2(), "pythia", **rotary, **more, **NO_DROPOUT)


def gpt_j() -> ModelConfig:
    """Return the config of GPT-J 6B (Wang and Komatsuzaki 2021): parallel layers with one norm each."""
    biases = {"qkv_bias": False, "out_bias": False, "output_bias": True}
    return _like(pythia(), "gpt-j", activation="gelu_tanh", rope_width=64, parallel_ffn="one_norm", **biases)


def phi_2() -> ModelConfig:
    """Return the config of Phi-2 (Microsoft 2023), which has biases everywhere and parallel layers with one norm."""
    return _like(gpt_j(), "phi-2", rope_width=32, qkv_bias=True, out_bias=True)


def falcon_7b() -> ModelConfig:
    """Return the config of Falcon 7B (Almazrouei et al. 2023): one key-value head, no biases, parallel layers."""
    return _like(pythia(), "falcon-7b", rope_width=None, parallel_ffn="one_norm", tie="output", **NO_BIASES)


def command_r() -> ModelConfig:
    """Return the config of Command R (Cohere 2024): parallel layers, layer norm without biases, scaled logits."""
    norm = {"norm": "layer", "norm_bias": False}
    return _like(llama(), "command-r", **norm, rope_theta=8e6, parallel_ffn="one_norm", output_multiplier=0.0625)


def gemma() -> ModelConfig:
    """Return the config of Gemma 2B (Gemma Team 2024): RMS norms with an offset of 1, GeGLU, scaled embeddings."""
    norm = {"norm": "offset_rms", "norm_eps": 1e-6}
    more = {"head_dim": 256, "rope_theta": 10000.0, "scale_embeddings": True}
    return _like(llama(), "gemma", activation="gelu_tanh", **norm, **more)


def gemma_2() -> ModelConfig:
    """Return the config of Gemma 2 2B: sandwich norms, soft caps, and a window in every other layer."""
    windows = {"sliding_window": 4096, "global_layers": tuple(range(1, 26, 2))}
    caps = {"attention_softcap": 50.0, "output_softcap": 30.0}
    return _like(gemma(), "gemma-2", norm_placement="sandwich", **caps, **windows)


def gemma_3() -> ModelConfig:
    """Return the config of Gemma 3 1B: windows in five of six layers, with rotary positions of another base there."""
    windows = {"sliding_window": 512, "global_layers": tuple(range(5, 26, 6))}
    caps = {"attention_softcap": None, "output_softcap": None}
    return _like(gemma_2(), "gemma-3", qk_norm=True, **caps, **windows, rope_theta=1e6, local_rope_theta=1e4)


def qwen3() -> ModelConfig:
    """Return the config of Qwen3 0.6B, a Llama with norms of queries and keys."""
    return _like(llama(), "qwen3", head_dim=128, norm_eps=1e-6, rope_theta=1e6, qk_norm=True)


def olmo() -> ModelConfig:
    """Return the config of OLMo 1B (Groeneveld et al. 2024), whose layer norms have no parameters."""
    return _like(llama(), "olmo", norm="layer", norm_bias=False, norm_weight=False, rope_theta=10000.0)


def olmo_2() -> ModelConfig:
    """Return the config of OLMo 2 1B: norms of each sublayer's output, and of all queries and keys at once."""
    norms = {"norm_placement": "output", "norm_eps": 1e-6, "qk_norm": True, "qk_norm_over": "all_heads"}
    return _like(llama(), "olmo-2", **norms, rope_theta=500000.0, tie="none")


def smollm3() -> ModelConfig:
    """Return the config of SmolLM3 3B, a Llama without rotary positions in every fourth layer."""
    return _like(llama(), "smollm3", norm_eps=1e-6, rope_theta=5e6, unrotated_layers=tuple(range(3, 36, 4)))


def mixtral() -> ModelConfig:
    """Return the config of Mixtral 8x7B (Jiang et al. 2024), a Llama with 8 experts, of which a token uses 2."""
    return _like(llama(), "mixtral", n_experts=8, expert_balance=0.02, rope_theta=1e6, tie="none")


def olmoe() -> ModelConfig:
    """Return the config of OLMoE 1B-7B (Muennighoff et al. 2024), whose tokens use 8 of 64 narrow experts."""
    experts = {"n_experts": 64, "experts_per_token": 8, "normalize_expert_weights": False, "expert_balance": 0.01}
    return _like(mixtral(), "olmoe", **experts, qk_norm=True, qk_norm_over="all_heads", rope_theta=10000.0)


def qwen2_moe() -> ModelConfig:
    """Return the config of Qwen1.5-MoE A2.7B (Qwen Team 2024): 4 of 60 experts, and one that all tokens use."""
    experts = {"n_experts": 60, "experts_per_token": 4, "normalize_expert_weights": False, "expert_balance": 0.001}
    widths = {"expert_d_ff": 1408, "shared_expert_d_ff": 5632}
    return _like(mixtral(), "qwen2-moe", **experts, **widths, qkv_bias=True, norm_eps=1e-6)


def _like(base: ModelConfig, name: str, **changes: Any) -> ModelConfig:
    """Return a config with the sizes of this preset, which differs from `base` in these fields, too."""
    return replace(base, **SIZES[name]._asdict(), **changes)


DECODERS: dict[str, Callable[[], ModelConfig]] = {
    "gpt2": gpt2,
    "llama": llama,
    "pythia": pythia,
    "gpt-j": gpt_j,
    "phi-2": phi_2,
    "falcon-7b": falcon_7b,
    "command-r": command_r,
    "gemma": gemma,
    "gemma-2": gemma_2,
    "gemma-3": gemma_3,
    "qwen3": qwen3,
    "olmo": olmo,
    "olmo-2": olmo_2,
    "smollm3": smollm3,
    "mixtral": mixtral,
    "olmoe": olmoe,
    "qwen2-moe": qwen2_moe,
}
