"""Configs of well-known decoder families, for `presets.py`."""

from collections.abc import Callable
from dataclasses import replace

from glassformer.models.config import ModelConfig


def gpt2() -> ModelConfig:
    """Return the config of GPT-2 small (Radford et al. 2019), which has 124 million parameters."""
    return ModelConfig(
        vocab_size=50257,
        n_decoder_layers=12,
        d_model=768,
        n_heads=12,
        d_ff=3072,
        max_len=1024,
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
        vocab_size=49152,
        n_decoder_layers=30,
        d_model=576,
        n_heads=9,
        n_kv_heads=3,
        d_ff=1536,
        max_len=8192,
        activation="silu",
        gated=True,
        norm="rms",
        norm_placement="pre",
        positions="rotary",
        rope_theta=100000.0,
        qkv_bias=False,
        out_bias=False,
        ffn_bias=False,
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
    return replace(
        gpt2(),
        vocab_size=50304,
        max_len=2048,
        activation="gelu",
        positions="rotary",
        rope_width=16,
        parallel_ffn="two_norms",
        tie="none",
        dropout=0.0,
        attention_dropout=0.0,
        embedding_dropout=0.0,
        init="normal",
    )


def gpt_j() -> ModelConfig:
    """Return the config of GPT-J 6B (Wang and Komatsuzaki 2021): parallel layers with one norm each."""
    return replace(
        pythia(),
        vocab_size=50400,
        n_decoder_layers=28,
        d_model=4096,
        n_heads=16,
        d_ff=16384,
        activation="gelu_tanh",
        rope_width=64,
        qkv_bias=False,
        out_bias=False,
        parallel_ffn="one_norm",
        output_bias=True,
    )


def phi_2() -> ModelConfig:
    """Return the config of Phi-2 (Microsoft 2023), which has biases everywhere and parallel layers with one norm."""
    return replace(
        gpt_j(),
        vocab_size=51200,
        n_decoder_layers=32,
        d_model=2560,
        n_heads=32,
        d_ff=10240,
        rope_width=32,
        qkv_bias=True,
        out_bias=True,
    )


def falcon_7b() -> ModelConfig:
    """Return the config of Falcon 7B (Almazrouei et al. 2023): one key-value head, no biases, parallel layers."""
    return replace(
        pythia(),
        vocab_size=65024,
        n_decoder_layers=32,
        d_model=4544,
        n_heads=71,
        n_kv_heads=1,
        d_ff=18176,
        rope_width=None,
        qkv_bias=False,
        out_bias=False,
        ffn_bias=False,
        parallel_ffn="one_norm",
        tie="output",
    )


def command_r() -> ModelConfig:
    """Return the config of Command R (Cohere 2024): parallel layers, layer norm without biases, scaled logits."""
    return replace(
        llama(),
        vocab_size=256000,
        n_decoder_layers=40,
        d_model=8192,
        n_heads=64,
        n_kv_heads=None,
        d_ff=22528,
        norm="layer",
        norm_bias=False,
        rope_theta=8e6,
        parallel_ffn="one_norm",
        output_multiplier=0.0625,
    )


def gemma() -> ModelConfig:
    """Return the config of Gemma 2B (Gemma Team 2024): RMS norms with an offset of 1, GeGLU, scaled embeddings."""
    return replace(
        llama(),
        vocab_size=256000,
        n_decoder_layers=18,
        d_model=2048,
        n_heads=8,
        n_kv_heads=1,
        head_dim=256,
        d_ff=16384,
        activation="gelu_tanh",
        norm="offset_rms",
        norm_eps=1e-6,
        rope_theta=10000.0,
        scale_embeddings=True,
    )


def gemma_2() -> ModelConfig:
    """Return the config of Gemma 2 2B: sandwich norms, soft caps, and a window in every other layer."""
    return replace(
        gemma(),
        n_decoder_layers=26,
        d_model=2304,
        n_kv_heads=4,
        d_ff=9216,
        norm_placement="sandwich",
        attention_softcap=50.0,
        output_softcap=30.0,
        sliding_window=4096,
        global_layers=tuple(range(1, 26, 2)),
    )


def gemma_3() -> ModelConfig:
    """Return the config of Gemma 3 1B: windows in five of six layers, with rotary positions of another base there."""
    return replace(
        gemma_2(),
        vocab_size=262144,
        d_model=1152,
        n_heads=4,
        n_kv_heads=1,
        d_ff=6912,
        max_len=32768,
        qk_norm=True,
        attention_softcap=None,
        output_softcap=None,
        sliding_window=512,
        global_layers=tuple(range(5, 26, 6)),
        rope_theta=1e6,
        local_rope_theta=1e4,
    )


def qwen3() -> ModelConfig:
    """Return the config of Qwen3 0.6B, a Llama with norms of queries and keys."""
    return replace(
        llama(),
        vocab_size=151936,
        n_decoder_layers=28,
        d_model=1024,
        n_heads=16,
        n_kv_heads=8,
        head_dim=128,
        d_ff=3072,
        max_len=40960,
        norm_eps=1e-6,
        rope_theta=1e6,
        qk_norm=True,
    )


def olmo() -> ModelConfig:
    """Return the config of OLMo 1B (Groeneveld et al. 2024), whose layer norms have no parameters."""
    return replace(
        llama(),
        vocab_size=50304,
        n_decoder_layers=16,
        d_model=2048,
        n_heads=16,
        n_kv_heads=None,
        d_ff=8192,
        max_len=2048,
        norm="layer",
        norm_bias=False,
        norm_weight=False,
        rope_theta=10000.0,
    )


def olmo_2() -> ModelConfig:
    """Return the config of OLMo 2 1B: norms of each sublayer's output, and of all queries and keys at once."""
    return replace(
        llama(),
        vocab_size=100352,
        n_decoder_layers=16,
        d_model=2048,
        n_heads=16,
        n_kv_heads=None,
        d_ff=8192,
        max_len=4096,
        norm_placement="output",
        norm_eps=1e-6,
        qk_norm=True,
        qk_norm_over="all_heads",
        rope_theta=500000.0,
        tie="none",
    )


def smollm3() -> ModelConfig:
    """Return the config of SmolLM3 3B, a Llama without rotary positions in every fourth layer."""
    return replace(
        llama(),
        vocab_size=128256,
        n_decoder_layers=36,
        d_model=2048,
        n_heads=16,
        n_kv_heads=4,
        d_ff=11008,
        max_len=65536,
        norm_eps=1e-6,
        rope_theta=5e6,
        unrotated_layers=tuple(range(3, 36, 4)),
    )


def mixtral() -> ModelConfig:
    """Return the config of Mixtral 8x7B (Jiang et al. 2024), a Llama with 8 experts, of which a token uses 2."""
    return replace(
        llama(),
        vocab_size=32000,
        n_decoder_layers=32,
        d_model=4096,
        n_heads=32,
        n_kv_heads=8,
        d_ff=14336,
        n_experts=8,
        expert_balance=0.02,
        max_len=32768,
        rope_theta=1e6,
        tie="none",
    )


def olmoe() -> ModelConfig:
    """Return the config of OLMoE 1B-7B (Muennighoff et al. 2024), whose tokens use 8 of 64 narrow experts."""
    return replace(
        mixtral(),
        vocab_size=50304,
        n_decoder_layers=16,
        d_model=2048,
        n_heads=16,
        n_kv_heads=None,
        d_ff=1024,
        n_experts=64,
        experts_per_token=8,
        normalize_expert_weights=False,
        expert_balance=0.01,
        qk_norm=True,
        qk_norm_over="all_heads",
        max_len=4096,
        rope_theta=10000.0,
    )


def qwen2_moe() -> ModelConfig:
    """Return the config of Qwen1.5-MoE A2.7B (Qwen Team 2024): 4 of 60 experts, and one that all tokens use."""
    return replace(
        mixtral(),
        vocab_size=151936,
        n_decoder_layers=24,
        d_model=2048,
        n_heads=16,
        n_kv_heads=None,
        d_ff=5632,
        n_experts=60,
        experts_per_token=4,
        expert_d_ff=1408,
        shared_expert_d_ff=5632,
        normalize_expert_weights=False,
        expert_balance=0.001,
        qkv_bias=True,
        norm_eps=1e-6,
        max_len=8192,
    )


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
