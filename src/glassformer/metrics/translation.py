"""BLEU and chrF by sacreBLEU, with the signatures that make them comparable."""

from collections.abc import Sequence
from typing import NamedTuple


class TranslationScores(NamedTuple):
    """Corpus scores, 0 to 100."""

    bleu: float
    chrf: float
    bleu_signature: str
    chrf_signature: str


def score_translations(
    translations: Sequence[str], references: Sequence[str], *, lowercase: bool = False, tokenize: str = "13a"
) -> TranslationScores:
    """Score translations against one reference each."""
    try:
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF
    except ImportError as error:
        raise ImportError("scores need sacreBLEU: pip install 'glassformer[metrics]'") from error
    if len(translations) != len(references):
        raise ValueError(f"{len(translations)} translations and {len(references)} references: expected as many")
    bleu, chrf = BLEU(lowercase=lowercase, tokenize=tokenize), CHRF(lowercase=lowercase)
    values = bleu.corpus_score(translations, [references]), chrf.corpus_score(translations, [references])
    return TranslationScores(values[0].score, values[1].score, str(bleu.get_signature()), str(chrf.get_signature()))
