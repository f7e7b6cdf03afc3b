"""Tokenizers and chat templates: text to token ids and back. Does not import torch."""

from glassformer.text.bpe_dropout import BpeDropout
from glassformer.text.tokenizer import Tokenizer, TokenizerConfig

__all__ = ["BpeDropout", "Tokenizer", "TokenizerConfig"]
