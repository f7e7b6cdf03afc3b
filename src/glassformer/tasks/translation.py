"""Translation: from sentence pairs to a model folder that translates."""

from collections.abc import Sequence
from typing import overload

from glassformer.data.corpora import CORPORA
from glassformer.data.pairs import Pair
from glassformer.decoding import GenerationConfig
from glassformer.metrics import Scores, score_translations
from glassformer.tasks.configs.translation import PairData, TranslationConfig
from glassformer.tasks.pipeline import ManyTexts
from glassformer.tasks.rewriter import Rewriter
from glassformer.tasks.rewriting import RewritingTask


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

    def about_data(self) -> str:
        """As above."""
        data = self.config.data
        languages = f"from {data.source_language} to {data.target_language}"
        if data.corpus in CORPORA:
            corpus = CORPORA[data.corpus]
            return f"{data.corpus}, {languages} ({corpus.about}; licence: {corpus.licence})"
        return ", ".join(str(path) for path in data.source)
