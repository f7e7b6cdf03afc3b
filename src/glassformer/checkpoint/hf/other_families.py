"""Well-known HF families that Glassformer's blocks cannot express, and what they have that the blocks lack."""

LACKING = {
    "a mixture of experts of another kind": (
        *("phimoe", "granitemoe", "dbrx", "jetmoe", "gpt_oss", "nllb-moe", "glm4_moe", "ernie4_5_moe", "qwen3_next"),
        *("deepseek_v2", "deepseek_v3", "llama4", "switch_transformers"),
    ),
    "state-space or recurrent layers": ("mamba", "mamba2", "falcon_mamba", "jamba", "rwkv", "recurrent_gemma"),
    "audio": ("whisper", "wav2vec2", "hubert", "speech_to_text", "musicgen", "seamless_m4t", "bark"),
    "images": (
        *("vit", "clip", "siglip", "blip", "llava", "gemma3", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "idefics3"),
        *("mllama", "paligemma", "layoutlm", "layoutlmv3", "vision-encoder-decoder"),
    ),
}
"""Features that the blocks lack, with the `model_type` of families that have it."""


def missing_block(model_type: object) -> str | None:
    """Return what Glassformer's blocks lack for a known family that it cannot express; None for any other name.

    >>> missing_block("dbrx")
    'a mixture of experts of another kind'
    """
    return next((what for what, families in LACKING.items() if model_type in families), None)
