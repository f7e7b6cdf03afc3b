"""From text to token ids and back. No torch here."""

from glassformer.text.bpe_dropout import BpeDropout
from glassformer.text.tokenizer import Tokenizer, TokenizerConfig

__all__ = ["BpeDropout", "Tokenizer", "TokenizerConfig"]
