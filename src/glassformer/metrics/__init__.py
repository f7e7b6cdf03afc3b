"""Thin, typed doors to the field's own scoring libraries."""

from glassformer.metrics.translation import TokenisedBleu, TranslationScores, score_translations, tokenised_bleu

__all__ = ["TokenisedBleu", "TranslationScores", "score_translations", "tokenised_bleu"]
