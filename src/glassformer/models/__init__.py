"""The model config, the three model classes that it can describe, and presets of well-known families."""

from typing import TYPE_CHECKING

from glassformer.models.config import Kind, ModelConfig
from glassformer.models.presets import PRESETS, preset

if TYPE_CHECKING:
    from glassformer.models.decoder import DecoderModel
    from glassformer.models.encoder import EncoderModel
    from glassformer.models.encoder_decoder import EncoderDecoderModel
    from glassformer.models.factory import build_model
    from glassformer.models.transformer import Model
else:
    from glassformer.base.lazy import lazy_names

    __getattr__ = lazy_names(
        __name__,
        {
            "transformer": ["Model"],
            "decoder": ["DecoderModel"],
            "encoder": ["EncoderModel"],
            "encoder_decoder": ["EncoderDecoderModel"],
            "factory": ["build_model"],
        },
    )

__all__ = [
    "PRESETS",
    "DecoderModel",
    "EncoderDecoderModel",
    "EncoderModel",
    "Kind",
    "Model",
    "ModelConfig",
    "build_model",
    "preset",
]
