"""Somebody else's encoder-decoder: one text in, another out."""

from collections.abc import Sequence
from dataclasses import replace

from glassformer.decoding import GenerationConfig, generate
from glassformer.models import EncoderDecoderModel
from glassformer.text.pretrained import PretrainedTokenizer


class TextToText:
    """T5, BART, Marian: a model with the tokenizers of what it reads and what it writes."""

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

    def run(self, texts: Sequence[str], *, beam: int | None = None) -> list[str]:
        """One text for each, in their order; a blank one stays blank."""
        config = self.generation if beam is None else replace(self.generation, num_beams=beam)
        told = [index for index, text in enumerate(texts) if text.strip()]
        sources = [self._read(texts[index]) for index in told]
        end = self.target_tokenizer.end
        found = generate(
            self.model,
            sources,
            config,
            begin=self.begin,
            end=-1 if end is None else end,
            tokenizer=self.target_tokenizer,
        )
        answers = [""] * len(texts)
        for index, written in zip(told, found, strict=True):
            answers[index] = written[0].text or ""
        return answers

    def _read(self, text: str) -> list[int]:
        """The tokens of a source; one that is too long is cut, and keeps its end."""
        tokens, limit = self.source_tokenizer.encode(text), self.model.config.max_len
        return tokens if limit is None or len(tokens) <= limit else [*tokens[: limit - 1], tokens[-1]]
