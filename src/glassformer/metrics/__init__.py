"""Thin, typed doors to the field's own scoring libraries."""

from glassformer.metrics.translation import TranslationScores, score_translations

__all__ = ["TranslationScores", "score_translations"]
