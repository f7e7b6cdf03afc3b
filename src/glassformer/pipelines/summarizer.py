"""Summarize texts with a trained encoder-decoder."""

from collections.abc import Sequence
from typing import overload

from glassformer.decoding import GenerationConfig
from glassformer.metrics.rouge import score_summaries
from glassformer.metrics.scores import Scores
from glassformer.pipelines.examples import Summary
from glassformer.pipelines.pipeline import ManyTexts
from glassformer.pipelines.seq2seq_pipeline import Seq2SeqPipeline


class Summarizer(Seq2SeqPipeline[Summary]):
    """Writes a summary of a text."""

    task = "summarization"
    search = GenerationConfig(num_beams=4, max_new_tokens=128, no_repeat_ngram_size=3)

    @overload
    def summarize(self, texts: str, *, beam: int | None = None) -> str: ...
    @overload
    def summarize(self, texts: ManyTexts, *, beam: int | None = None) -> list[str]: ...
    def summarize(self, texts: str | ManyTexts, *, beam: int | None = None) -> str | list[str]:
        """Summarize one text, or each text of a list. A text longer than the model's limit is cut."""
        return self.write(texts, beam=beam)

    def score(self, examples: Sequence[Summary]) -> Scores:
        """Return ROUGE-1, ROUGE-2 and ROUGE-L."""
        found = self.summarize([example.source for example in examples])
        return score_summaries(found, [example.references for example in examples])
