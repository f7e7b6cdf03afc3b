"""Thin, typed doors to the field's own scoring libraries."""

from glassformer.metrics.bleu import TokenisedBleu, score_translations, tokenised_bleu
from glassformer.metrics.scores import Scores

__all__ = ["Scores", "TokenisedBleu", "score_translations", "tokenised_bleu"]
