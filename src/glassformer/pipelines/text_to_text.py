"""Generate texts from source texts with an encoder-decoder that was loaded from the format of another library."""

from collections.abc import Sequence
from dataclasses import replace
from typing import overload

from glassformer.decoding import GenerationConfig
from glassformer.models import EncoderDecoderModel
from glassformer.pipelines.pipeline import (
    WRITING_BATCH_TOKENS,
    Candidate,
    LineAnswer,
    LineRequest,
    ManyTexts,
    Pipeline,
    answer_of,
    candidate_of,
    each_text,
)
from glassformer.pipelines.seq2seq_pipeline import cut_marked
from glassformer.text.pretrained_tokenizers import PretrainedTokenizer


class TextToText(Pipeline):
    """A pretrained encoder-decoder (T5, BART, Marian) with its source and target tokenizers.

    `begin` is the id of the token with which the decoder starts.
    """

    def __init__(
        self,
        model: EncoderDecoderModel,
        source_tokenizer: PretrainedTokenizer,
        target_tokenizer: PretrainedTokenizer,
        *,
        begin: int,
        generation: GenerationConfig | None = None,
    ):
        self.model = model
        self.source_tokenizer, self.target_tokenizer = source_tokenizer, target_tokenizer
        self.begin = begin
        self.generation = generation or GenerationConfig(num_beams=4)

    @overload
    def run(self, lines: str, *, beam: int | None = None) -> str: ...
    @overload
    def run(self, lines: ManyTexts, *, beam: int | None = None) -> list[str]: ...
    def run(self, lines: str | ManyTexts, *, beam: int | None = None) -> str | list[str]:
        """Return the generated text for each line. One string gives one string. A blank line stays blank.

        `beam` is the beam width; None uses the model's generation settings.
        """
        request = LineRequest(generation=None if beam is None else replace(self.generation, num_beams=beam))
        return each_text(lines, lambda several: self._run(several, request), "lines")

    def answer_lines(self, lines: Sequence[str], request: LineRequest) -> list[LineAnswer]:
        """Generate an answer to each line, which is a source text. A blank line stays blank."""
        found = self.candidates(lines, request.generation, with_scores=request.with_scores)
        return [answer_of(one, request) for one in found]

    def candidates(
        self, texts: Sequence[str], generation: GenerationConfig | None = None, *, with_scores: bool = False
    ) -> list[list[Candidate]]:
        """Generate `num_return_sequences` texts for each source text, best first; none for a blank source."""
        config = generation or self.generation
        with_text = [index for index, text in enumerate(texts) if text.strip()]
        sources = self.read_sources([texts[index] for index in with_text])
        end = self.target_tokenizer.end
        found = self.write_tokens(
            sources,
            config,
            begin=self.begin,
            end=-1 if end is None else end,
            with_log_probs=with_scores,
            tokenizer=self.target_tokenizer,
            batch_tokens=self.batch_tokens or WRITING_BATCH_TOKENS,
        )
        answers: list[list[Candidate]] = [[] for _ in texts]
        for index, several in zip(with_text, found, strict=True):
            answers[index] = [candidate_of(one, one.text or "", config.length_penalty) for one in several]
        return answers

    def read_sources(self, texts: list[str]) -> list[list[int]]:
        """Tokenize source texts. A text that is cut keeps the special tokens at its end."""
        limit = self.model.config.max_len
        sources = self.source_tokenizer.encode_batch(texts)
        return self.fit_inputs(sources, limit, lambda ids: cut_marked(ids, limit or 1, "first", self.source_tokenizer))
