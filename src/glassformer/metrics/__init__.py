"""Evaluation metrics, computed by the field's libraries (sacreBLEU, rouge_score, seqeval) where there is one."""

from glassformer.metrics.bleu import TokenizedBleu, score_translations, tokenized_bleu
from glassformer.metrics.scores import Scores

__all__ = ["Scores", "TokenizedBleu", "score_translations", "tokenized_bleu"]
