"""Translate sentences with a trained encoder-decoder."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, overload

from glassformer.data.readers.pairs import Pair
from glassformer.decoding import GenerationConfig
from glassformer.pipelines.pipeline import ManyTexts
from glassformer.pipelines.seq2seq_pipeline import Seq2SeqPipeline

if TYPE_CHECKING:  # `glassformer run` imports no metrics
    from glassformer.metrics.scores import Scores


class Translator(Seq2SeqPipeline[Pair]):
    """An encoder-decoder that translates sentences from one language to another."""

    task = "translation"
    search = GenerationConfig(num_beams=4, max_source_ratio=2.0)

    @overload
    def translate(self, texts: str, *, beam: int | None = None, batch_tokens: int | None = None) -> str: ...
    @overload
    def translate(self, texts: ManyTexts, *, beam: int | None = None, batch_tokens: int | None = None) -> list[str]: ...
    def translate(
        self, texts: str | ManyTexts, *, beam: int | None = None, batch_tokens: int | None = None
    ) -> str | list[str]:
        """Return the translation of one text, or the translations of a list. A blank text gives a blank translation.

        A text longer than the model's limit raises a ValueError, or is cut with `truncate`. `beam` is the beam width;
        1 is greedy search, and None uses the model's generation settings.
        """
        return self.write(texts, beam=beam, batch_tokens=batch_tokens)

    def score(self, examples: Sequence[Pair], *, beam: int | None = None) -> "Scores":
        """Translate the source of each example, and return BLEU and chrF with the targets as references."""
        from glassformer.metrics.bleu import score_translations

        found = self.translate([pair.source for pair in examples], beam=beam)
        return score_translations(found, [pair.target for pair in examples])
