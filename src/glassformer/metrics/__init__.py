"""Thin, typed doors to the field's own scoring libraries."""

from glassformer.metrics.scores import Scores
from glassformer.metrics.translation import TokenisedBleu, score_translations, tokenised_bleu

__all__ = ["Scores", "TokenisedBleu", "score_translations", "tokenised_bleu"]
