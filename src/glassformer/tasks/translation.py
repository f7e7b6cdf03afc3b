"""Translation: from sentence pairs to a model folder that translates."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import overload

from glassformer.data.corpora import CORPORA
from glassformer.data.pairs import Pair
from glassformer.decoding import GenerationConfig
from glassformer.metrics import Scores, score_translations
from glassformer.tasks.card import code, in_short, validation_files
from glassformer.tasks.configs.translation import PairData, TranslationConfig
from glassformer.tasks.pipeline import ManyTexts
from glassformer.tasks.rewriter import Rewriter
from glassformer.tasks.rewriting import RewritingTask

NOT_NAMED = "not named; --source-language and --target-language name them"
"""Of a language that neither a flag nor a file name tells."""


class Translator(Rewriter[Pair]):
    """A trained model with its tokenizers: a sentence in, its translation out."""

    task = "translation"
    search = GenerationConfig(num_beams=4, max_source_ratio=2.0)

    @overload
    def translate(self, texts: str, *, beam: int | None = None, max_batch_tokens: int = 4096) -> str: ...
    @overload
    def translate(self, texts: ManyTexts, *, beam: int | None = None, max_batch_tokens: int = 4096) -> list[str]: ...
    def translate(
        self, texts: str | ManyTexts, *, beam: int | None = None, max_batch_tokens: int = 4096
    ) -> str | list[str]:
        """Translate one text, or each of a list in the same order; a blank text stays blank.

        Sources longer than the model's limit are cut to it. `beam` is how many sentences are kept at each step; 1 is
        greedy.
        """
        return self.write(texts, beam=beam, max_batch_tokens=max_batch_tokens)

    def score(self, examples: Sequence[Pair], *, beam: int | None = None) -> Scores:
        """BLEU and chrF of the translations of these sources against their targets."""
        found = self.translate([pair.source for pair in examples], beam=beam)
        return score_translations(found, [pair.target for pair in examples])


class Translation(RewritingTask[Pair]):
    """Sentence pairs to a translator."""

    name, title = "translation", "A translator"
    Config, Data, Tool = TranslationConfig, PairData, Translator

    def data_facts(self) -> list[tuple[str, str]]:
        """The corpus or the files, and the language of each side."""
        data: PairData = self.config.data
        source, target = languages_of(data)
        if data.corpus in CORPORA:
            corpus = CORPORA[data.corpus]
            facts = [("corpus", f"{code(data.corpus)}: {corpus.about}; licence: {corpus.licence}")]
        else:
            held_out = "held out from the training files"
            facts = [
                ("source files", in_short(map(code, data.source))),
                ("target files", in_short(map(code, data.target)) or "in the source files"),
                ("validation files", in_short(map(code, validation_files(data))) or held_out),
            ]
        return [*facts, ("source language", source), ("target language", target)]


def languages_of(data: PairData) -> tuple[str, str]:
    """The languages of both sides: of a corpus as named, of files by their names, such as train.en and train.de.gz.

    A language that was named by --source-language or --target-language is taken as it is.
    """
    if data.corpus:
        return data.corpus_languages()
    source = data.source_language or _language_of(data.source) or NOT_NAMED
    return source, data.target_language or _language_of(data.target) or NOT_NAMED


def _language_of(files: Sequence[Path]) -> str:
    """The language code that all these file names end with, or nothing."""
    found = {path.name.removesuffix(".gz").rpartition(".")[2] for path in files}
    language = found.pop() if len(found) == 1 else ""
    return language if re.fullmatch(r"[a-z]{2}([-_][A-Za-z]{2,4})?", language) else ""
