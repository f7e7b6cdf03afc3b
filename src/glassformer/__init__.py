"""Glassformer: the Transformer, whole and transparent.

Everything in `__all__` is importable from here and is loaded when first asked for, so that `import
glassformer.reference` needs NumPy alone and the command line answers `--help` without waiting for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glassformer.documents import (
        BERTModel,
        Decoder,
        DecoderBlock,
        DecoderLayer,
        Encoder,
        EncoderBlock,
        EncoderLayer,
        FeedForward,
        FeedForwardBlock,
        GPTModel,
        InputEmbedding,
        LayerNormalization,
        MultiHeadAttention,
        PositionalEncoding,
        PositionWiseFeedForward,
        ProjectionLayer,
        ResidualConnection,
        T5Model,
        TokenEmbedding,
        Transformer,
        build_transformer,
        load_document_weights,
    )
    from glassformer.models import (
        PRESETS,
        DecoderModel,
        EncoderDecoderModel,
        EncoderModel,
        ModelConfig,
        build_model,
        preset,
    )
    from glassformer.nn import KVCache, Mask, attend, capture_attention, sinusoids
    from glassformer.tasks.train_function import train

__version__ = "0.1.0"
ROOMS = (
    "checkpoint",
    "data",
    "decoding",
    "documents",
    "inspect",
    "metrics",
    "models",
    "nn",
    "progress",
    "reference",
    "tasks",
    "text",
    "training",
)
__all__ = [
    "PRESETS",
    "BERTModel",
    "Decoder",
    "DecoderBlock",
    "DecoderLayer",
    "DecoderModel",
    "Encoder",
    "EncoderBlock",
    "EncoderDecoderModel",
    "EncoderLayer",
    "EncoderModel",
    "FeedForward",
    "FeedForwardBlock",
    "GPTModel",
    "InputEmbedding",
    "KVCache",
    "LayerNormalization",
    "Mask",
    "ModelConfig",
    "MultiHeadAttention",
    "PositionWiseFeedForward",
    "PositionalEncoding",
    "ProjectionLayer",
    "ResidualConnection",
    "T5Model",
    "TokenEmbedding",
    "Transformer",
    "attend",
    "build_model",
    "build_transformer",
    "capture_attention",
    "load_document_weights",
    "preset",
    "sinusoids",
    "train",
]


def __getattr__(name: str) -> Any:
    if name == "train":
        return import_module("glassformer.tasks.train_function").train
    if name in __all__:
        # Documents first: where a document's class and a block of ours share a name, the plain name is the document's.
        for home in ("glassformer.documents", "glassformer.models", "glassformer.nn"):
            module = import_module(home)
            if hasattr(module, name):
                return getattr(module, name)
    if name in ROOMS:
        return import_module(f"glassformer.{name}")
    raise AttributeError(f"module 'glassformer' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, *ROOMS]
