"""Summarize texts with a trained encoder-decoder."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, overload

from glassformer.decoding import GenerationConfig
from glassformer.pipelines.examples import Summary
from glassformer.pipelines.pipeline import ManyTexts
from glassformer.pipelines.seq2seq_pipeline import Seq2SeqPipeline

if TYPE_CHECKING:  # `glassformer run` imports no metrics
    from glassformer.metrics.scores import Scores


class Summarizer(Seq2SeqPipeline[Summary]):
    """An encoder-decoder that generates a summary of a text."""

    task = "summarization"
    search = GenerationConfig(num_beams=4, max_new_tokens=128, no_repeat_ngram_size=3)

    @overload
    def summarize(self, texts: str, *, beam: int | None = None) -> str: ...
    @overload
    def summarize(self, texts: ManyTexts, *, beam: int | None = None) -> list[str]: ...
    def summarize(self, texts: str | ManyTexts, *, beam: int | None = None) -> str | list[str]:
        """Return the summary of one text, or the summaries of a list of texts.

        A text longer than the model's limit raises a ValueError, or is cut with `truncate`. `beam` is the beam width;
        None uses the model's generation settings.
        """
        return self.write(texts, beam=beam)

    def score(self, examples: Sequence[Summary]) -> "Scores":
        """Summarize the examples and return ROUGE-1, ROUGE-2 and ROUGE-L of the summaries."""
        from glassformer.metrics.rouge import score_summaries

        found = self.summarize([example.source for example in examples])
        return score_summaries(found, [example.references for example in examples])
