"""TODO."""

from collections.abc import Sequence
from typing import overload

from glassformer.data.readers.pairs import Pair
from glassformer.decoding import GenerationConfig
from glassformer.metrics import Scores, score_translations
from glassformer.pipelines.pipeline import ManyTexts
from glassformer.pipelines.seq2seq_pipeline import Seq2SeqPipeline


class Translator(Seq2SeqPipeline[Pair]):
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
