"""Generate texts from source texts with a pretrained encoder-decoder."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Self, overload

from glassformer.checkpoint.hf.generation_settings import TASKS
from glassformer.decoding import GenerationConfig
from glassformer.models import EncoderDecoderModel
from glassformer.pipelines.hf_generation import TaskSettings
from glassformer.pipelines.pipeline import (
    WRITING_BATCH_TOKENS,
    Candidate,
    LineAnswer,
    LineRequest,
    ManyTexts,
    Pipeline,
    answer_of,
    candidate_of,
    check_texts,
    each_text,
)
from glassformer.pipelines.seq2seq_pipeline import cut_marked, with_prefix
from glassformer.text.language_codes import LanguageLayout
from glassformer.text.pretrained_tokenizers import PretrainedTokenizer


class TextToText(Pipeline):
    """A pretrained encoder-decoder (T5, BART, Marian) with its source and target tokenizers.

    Args:
        begin: Id of the token with which the decoder starts; -1 if the language of the target decides it.
        languages: The language codes of a multilingual translation model (mBART, M2M100, NLLB); None has none.
        tasks: The settings of the tasks in the model's files (`task_specific_params`), by their names.
    """

    def __init__(
        self,
        model: EncoderDecoderModel,
        source_tokenizer: PretrainedTokenizer,
        target_tokenizer: PretrainedTokenizer,
        *,
        begin: int,
        generation: GenerationConfig | None = None,
        languages: LanguageLayout | None = None,
        tasks: Mapping[str, TaskSettings] | None = None,
    ):
        self.model = model
        self.source_tokenizer, self.target_tokenizer = source_tokenizer, target_tokenizer
        self.begin = begin
        self.generation = generation or GenerationConfig(num_beams=4)
        self.languages = languages
        self.source_language = ""
        """Language code of the sources; if empty, the tokenizer adds its own."""
        self.tasks = tasks or {}
        self.source_prefix = ""
        """What precedes each source text, such as "summarize: "."""

    def with_task(self, name: str) -> Self:
        """Return a pipeline for one of the model's `tasks`, such as `summarization` or `translation_en_to_de`.

        It shares the model with this one. The task's prefix precedes each source text, and its generation settings are
        used, as in HF's pipelines. Raises ValueError for a task that the model's files do not have.
        """
        if name not in self.tasks:
            known = f"expected one of {', '.join(self.tasks)}" if self.tasks else "its config.json has none"
            raise ValueError(f"task {name!r}: the model's files have no settings for it ({TASKS}); {known}")
        found = copy.copy(self)
        found.source_prefix, found.generation = self.tasks[name]
        return found

    def with_languages(self, source: str = "", target: str = "") -> Self:
        """Return a pipeline that translates from one language to another, for a model with language codes.

        It shares the model with this one. A language is a code of the model, such as `deu_Latn`, or the first part of a
        code if that is unique, such as `de` for `de_DE`. An empty one stays as it is. Raises ValueError for a language
        that the model does not have.
        """
        if not source and not target:
            return self
        layout = self.languages
        if layout is None:
            raise ValueError(
                f"source language {source!r}, target language {target!r}: expected none, because the model's tokenizer "
                "has no language codes"
            )
        found = copy.copy(self)
        if source:
            found.source_language = layout.find(source, "source language")
        if target:
            code = layout.codes[layout.find(target, "target language")]
            if self.begin in (-1, *layout.codes.values()):  # mBART
                found.begin = code
            else:  # mBART-50, M2M100, NLLB: HF's forced_bos_token_id
                found.generation = replace(self.generation, prefix=(code,))
        return found

    def check_languages(self) -> None:
        """Raise ValueError if the model needs a target language and has none, by its files or `with_languages`."""
        layout = self.languages
        if layout is None or {self.begin, *self.generation.prefix} & {*layout.codes.values()}:
            return
        raise ValueError(
            f"the model writes {len(layout.codes)} languages, and its files choose none: expected --target-language "
            f"(in Python with_languages(target=...)), one of {layout.listed()}"
        )

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
        found = self.candidates(check_texts(lines, "lines"), request.generation, with_scores=request.with_scores)
        return [answer_of(one, request) for one in found]

    def candidates(
        self, texts: Sequence[str], generation: GenerationConfig | None = None, *, with_scores: bool = False
    ) -> list[list[Candidate]]:
        """Generate `num_return_sequences` texts for each source text, best first; none for a blank source."""
        self.check_languages()
        config, texts = generation or self.generation, check_texts(texts)
        if self.languages is not None and not config.prefix:  # the prefix is the language
            config = replace(config, prefix=self.generation.prefix)
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
        limit, layout = self.model.config.max_len, self.languages
        prefixed = [with_prefix(self.source_prefix, text) for text in texts]
        sources = self.source_tokenizer.encode_batch(prefixed, special=not self.source_language)
        if layout is not None and self.source_language:
            sources = [layout.mark(ids, self.source_language) for ids in sources]
        return self.fit_inputs(sources, limit, lambda ids: cut_marked(ids, limit or 1, "first", self.source_tokenizer))
