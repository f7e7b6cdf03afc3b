"""BLEU and chrF, computed by sacreBLEU, with the signatures that say which scores are comparable."""

from collections.abc import Sequence
from typing import NamedTuple

from glassformer.metrics.scores import Scores


class TokenizedBleu(NamedTuple):
    """A corpus-level tokenized BLEU score from 0 to 100, and a signature that says how it was computed."""

    bleu: float
    signature: str


def score_translations(
    translations: Sequence[str], references: Sequence[str], *, lowercase: bool = False, tokenize: str = "13a"
) -> Scores:
    """Return corpus-level BLEU and chrF of translations against one reference each, with sacreBLEU's signatures.

    `tokenize` is the name of the sacreBLEU tokenizer that BLEU uses. With `lowercase` both scores ignore case.
    """
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
    """Return lower-cased, tokenized BLEU against one reference each, as papers on Multi30k report it.

    Translations and references are plain text and are processed as in Multi30k's `task1-tokenize.sh`: lower case, Moses
    punctuation normalization, Moses tokenization without hyphen splitting. `language` is the language code of the
    translations, such as "de". The score equals that of `multi-bleu.perl`, without smoothing, and is not comparable
    with other kinds of BLEU.
    """
    try:
        import sacremoses
        from sacrebleu.metrics.bleu import BLEU
    except ImportError as error:
        raise ImportError("tokenized BLEU needs sacreBLEU and sacremoses: pip install sacrebleu sacremoses") from error
    _check_texts(translations, references)
    # Moses falls back to English for unknown languages.
    if len(language) not in (2, 3) or not language.islower():
        raise ValueError(f'language={language!r}: expected a code such as "de"')
    normalize = sacremoses.MosesPunctNormalizer(language, perl_parity=True).normalize
    tokenise = sacremoses.MosesTokenizer(language).tokenize

    def prepare(texts: Sequence[str]) -> list[str]:
        # Moses uses case to recognize abbreviations, so lower-case first, as the script does.
        return [tokenise(normalize(text.lower()), return_str=True, escape=False) for text in texts]

    bleu = BLEU(lowercase=True, tokenize="none", smooth_method="none", force=True)
    score = bleu.corpus_score(prepare(translations), [prepare(references)]).score
    steps = f"moses:lc+norm+tok|lang:{language}|sacremoses:{sacremoses.__version__}"
    return TokenizedBleu(score, f"{bleu.get_signature()}|{steps}")


def _check_texts(translations: Sequence[str], references: Sequence[str]) -> None:
    if len(translations) != len(references):
        raise ValueError(f"{len(translations)} translations and {len(references)} references: expected as many")
    if not translations:
        raise ValueError("there are no translations: expected at least one")
