"""From text to token ids and back. No torch here."""

from glassformer.text.tokenizer import Tokenizer, TokenizerConfig

__all__ = ["Tokenizer", "TokenizerConfig"]
