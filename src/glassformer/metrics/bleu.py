"""BLEU and chrF by sacreBLEU, with the signatures that make them comparable."""

from collections.abc import Sequence
from typing import NamedTuple

from glassformer.metrics.scores import Scores


class TokenizedBleu(NamedTuple):
    """A corpus score, 0 to 100, and what exactly was done to get it."""

    bleu: float
    signature: str


def score_translations(
    translations: Sequence[str], references: Sequence[str], *, lowercase: bool = False, tokenize: str = "13a"
) -> Scores:
    """Score translations against one reference each."""
    try:
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF
    except ImportError as error:
        raise ImportError("scores need sacreBLEU: pip install sacrebleu") from error
    _check_texts(translations, references)
    bleu, chrf = BLEU(lowercase=lowercase, tokenize=tokenize), CHRF(lowercase=lowercase)
    values = bleu.corpus_score(translations, [references]), chrf.corpus_score(translations, [references])
    return Scores(
        {"bleu": values[0].score, "chrf": values[1].score},
        {"bleu": str(bleu.get_signature()), "chrf": str(chrf.get_signature())},
    )


def tokenized_bleu(translations: Sequence[str], references: Sequence[str], language: str) -> TokenizedBleu:
    """Lower-cased, tokenised BLEU against one reference each, as papers on Multi30k report it.

    Both sides are plain text and go through the steps of Multi30k's own `task1-tokenize.sh`, whose files those papers
    train and score on: lower case, Moses's normal punctuation, Moses's tokens without hyphen splitting. `language` is
    the translations' code, such as "de". The score is `multi-bleu.perl`'s: no smoothing. Compare it with no other BLEU.
    """
    try:
        import sacremoses
        from sacrebleu.metrics.bleu import BLEU
    except ImportError as error:
        raise ImportError("tokenised BLEU needs sacreBLEU and sacremoses: pip install sacrebleu sacremoses") from error
    _check_texts(translations, references)
    # Moses takes whatever it does not know for English.
    if len(language) not in (2, 3) or not language.islower():
        raise ValueError(f'language={language!r}: expected a code such as "de"')
    normalise = sacremoses.MosesPunctNormalizer(language, perl_parity=True).normalize
    tokenise = sacremoses.MosesTokenizer(language).tokenize

    def prepare(texts: Sequence[str]) -> list[str]:
        # Moses looks at case to tell abbreviations from ends of sentences, so lower case comes first, as it does there.
        return [tokenise(normalise(text.lower()), return_str=True, escape=False) for text in texts]

    bleu = BLEU(lowercase=True, tokenize="none", smooth_method="none", force=True)
    score = bleu.corpus_score(prepare(translations), [prepare(references)]).score
    steps = f"moses:lc+norm+tok|lang:{language}|sacremoses:{sacremoses.__version__}"
    return TokenizedBleu(score, f"{bleu.get_signature()}|{steps}")


def _check_texts(translations: Sequence[str], references: Sequence[str]) -> None:
    if len(translations) != len(references):
        raise ValueError(f"{len(translations)} translations and {len(references)} references: expected as many")
    if not translations:
        raise ValueError("there are no translations: expected at least one")
