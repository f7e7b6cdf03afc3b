"""Translation: from sentence pairs to a model folder that translates."""

from collections.abc import Sequence
from typing import Any, overload

from glassformer.data.corpora.catalog import CORPORA
from glassformer.data.readers.pairs import Pair
from glassformer.decoding import GenerationConfig
from glassformer.metrics import Scores, score_translations
from glassformer.tasks.card import code, in_short, validation_files
from glassformer.tasks.configs.translation import PairData, TranslationConfig
from glassformer.tasks.pipeline import ManyTexts
from glassformer.tasks.rewriter import Rewriter
from glassformer.tasks.rewriting import RewritingTask


class Translator(Rewriter[Pair]):
    """A trained model with its tokenizers: a sentence in, its translation out."""

    task = "translation"
    search = GenerationConfig(num_beams=4, max_source_ratio=2.0)

    def data_settings(self, data: PairData) -> dict[str, Any]:
        """The same with both languages as far as they are known, and how they are."""
        found, sides = super().data_settings(data), dict(zip(("source", "target"), data.languages(), strict=True))
        found["data"] |= {f"{side}_language": language.code for side, language in sides.items()}
        return {**found, "language_origins": {side: language.origin for side, language in sides.items()}}

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
        sides = zip(("source", "target"), data.languages(), strict=True)
        unknown = "not known; --{}-language names it"
        return [*facts, *((f"{side} language", str(one) or unknown.format(side)) for side, one in sides)]
