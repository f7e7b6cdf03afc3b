"""Typed wrappers around the field's scoring libraries."""

from glassformer.metrics.bleu import TokenizedBleu, score_translations, tokenized_bleu
from glassformer.metrics.scores import Scores

__all__ = ["Scores", "TokenizedBleu", "score_translations", "tokenized_bleu"]
