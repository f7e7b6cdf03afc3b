"""A decoder trained with Glassformer, which writes texts of any length and is scored by how well it predicts texts.

A prompt must fit into the model's context, but the text after it may be longer. It is generated in several context
windows: when one is full, the next starts with the last half of the text. The code calls them rounds.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, overload

from typing_extensions import override

from glassformer.checkpoint.hf.generation_settings import GENERATION
from glassformer.data.readers.text_documents import Document
from glassformer.decoding import GeneratedText, GenerationConfig, TextStream, stream
from glassformer.decoding.scoring import score_long_texts
from glassformer.decoding.text_stream import decode_after
from glassformer.models import DecoderModel
from glassformer.pipelines.generator import Generator
from glassformer.pipelines.pipeline import (
    READING_BATCH_TOKENS,
    WRITING_BATCH_TOKENS,
    Candidate,
    LineAnswer,
    LineRequest,
    ManyTexts,
    candidate_of,
    each_text,
)
from glassformer.pipelines.pipeline_registry import TASK
from glassformer.pipelines.pretrained_base import AnyTokenizer, document_start, read_base
from glassformer.pipelines.seq2seq_pipeline import read_search
from glassformer.pipelines.settings import check_settings
from glassformer.pipelines.trained_pipeline import ModelLoader, TrainedPipeline
from glassformer.text import Tokenizer

if TYPE_CHECKING:  # `glassformer run` imports no metrics
    from glassformer.metrics.scores import Scores

SEEDS_APART = 1000
"""The difference between the random seeds of two samples of a prompt. Each further context window adds 1 to a seed."""


@dataclass
class _Draft:
    """An unfinished text of `LanguageModel.candidates_after`, which grows by one context window at a time.

    `goes_on` says that the text needs another window.
    """

    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    score: float | None = None
    text: str = ""
    goes_on: bool = False

    def candidate(self, length_penalty: float) -> Candidate:
        """Return the text generated so far, with its score."""
        return candidate_of(GeneratedText(self.tokens, self.score, self.log_probs), self.text, length_penalty)


class LanguageModel(Generator, TrainedPipeline[Document]):
    """A decoder trained with Glassformer, with its tokenizer. It can generate texts longer than its context."""

    task = "language"

    def __init__(
        self,
        model: DecoderModel,
        tokenizer: AnyTokenizer,
        generation: GenerationConfig | None = None,
        *,
        has_documents: bool = True,
        window: int = 0,
    ):
        ends = () if isinstance(tokenizer, Tokenizer) else tokenizer.ends
        super().__init__(model, tokenizer, generation or GenerationConfig(eos_token_id=ends))
        self.has_documents = has_documents
        """Whether the training data was many documents, separated by END, instead of one long text."""
        self.window = window or self.context
        """The number of tokens that `score` reads at once: those of a training window, at most the context."""

    @override
    @classmethod
    def read_folder(cls, folder: Path, read_model: ModelLoader) -> Self:
        model, about = cls.open_folder(folder, DecoderModel, read_model)
        check_settings(cls, about, folder / TASK)
        base = read_base(folder)
        tokenizer = Tokenizer.load(folder / "tokenizer.json") if base is None else base.source
        found = cls(model, tokenizer, read_search(folder), **about)
        found.base_files = {} if base is None else base.files
        return found

    @override
    def files(self) -> dict[str, str]:
        texts = {GENERATION: json.dumps(self.generation.to_dict(), indent=2)}
        if not isinstance(self.tokenizer, Tokenizer):
            return {**self.base_files, **texts}
        return {"tokenizer.json": self.tokenizer.to_json(), **texts}

    @override
    def settings(self) -> dict[str, Any]:
        window = {} if self.window == self.context else {"window": self.window}
        return {"has_documents": self.has_documents, **window}

    @property
    def context(self) -> int:
        """The largest number of tokens that the model reads at once."""
        return self.model.config.max_len or 512

    @property
    def start(self) -> list[int]:
        """The tokens that precede a text: END, or a line break if the model was trained on one long text.

        A pretrained model may have another token than END for it.
        """
        first = [document_start(self.tokenizer)]
        return first if self.has_documents else self.tokenizer.encode_plain("\n")[:1] or first

    def read(self, text: str) -> list[int]:
        """Tokenize a prompt. The tokens of `start` come first if the model was trained on documents.

        An empty prompt becomes the tokens of `start` for every model.
        """
        tokens = self.tokenizer.encode_plain(text)
        return tokens if tokens and not self.has_documents else [*self.start, *tokens]

    def answer_lines(self, lines: Sequence[str], request: LineRequest) -> list[LineAnswer]:
        """Return the continuation of each line. A blank line stays blank."""
        if request.chat:
            self.answer_to([])  # raises: there is no chat template
        return super().answer_lines(lines, request)

    @overload
    def generate(self, text: str = "", config: GenerationConfig | None = None, **changes: Any) -> str: ...
    @overload
    def generate(self, text: ManyTexts, config: GenerationConfig | None = None, **changes: Any) -> list[str]: ...
    def generate(
        self, text: str | ManyTexts = "", config: GenerationConfig | None = None, **changes: Any
    ) -> str | list[str]:
        """Return the continuation of `text`. A list of texts gives a list of continuations.

        `changes` override fields of `config`: `generate("To be", max_new_tokens=100, do_sample=True)`.
        """
        config = replace(config or self.generation, **changes)
        return each_text(text, lambda texts: self.write_after([self.read(one) for one in texts], config), "text")

    def write_after(self, prompts: Sequence[list[int]], config: GenerationConfig | None = None) -> list[str]:
        """Return one continuation of each prompt, which is a list of token ids."""
        return [several[0].text for several in self.candidates_after(prompts, config)]

    def candidates_after(
        self, prompts: Sequence[list[int]], config: GenerationConfig | None = None, *, with_scores: bool = False
    ) -> list[list[Candidate]]:
        """Generate `config.num_return_sequences` continuations of each prompt, which is a list of token ids.

        A text that fills the context is continued in a new context, which starts with the last half of the text.
        """
        config = config or self.generation
        copies = config.num_return_sequences
        drafts = [[_Draft(prompt) for _ in range(copies)] for prompt in self.fit_prompts(prompts, config)]
        # The copies of a prompt are generated together in the first round. Later each has its own context.
        groups, round_number = [(0, drafts)] if drafts else [], 0
        while groups:
            for copy, rows in groups:
                # Unfinished texts have about the same length; the longest remaining length is generated for all.
                part = self._part(config, max(config.max_new_tokens - len(row[0].tokens) for row in rows), round_number)
                part = replace(part, num_return_sequences=len(rows[0]), seed=part.seed + SEEDS_APART * copy)
                given = [self._window(row[0].prompt + row[0].tokens) for row in rows]
                found = self.write_tokens(
                    given,
                    part,
                    end=self.end,
                    with_log_probs=with_scores,
                    tokenizer=self.tokenizer,
                    batch_tokens=self.batch_tokens or WRITING_BATCH_TOKENS,
                )
                for row, several in zip(rows, found, strict=True):
                    for draft, written in zip(row, several, strict=True):
                        self._extend(draft, written, config)
            waiting = [[[row[copy]] for row in drafts if row[copy].goes_on] for copy in range(copies)]
            groups, round_number = [(copy, rows) for copy, rows in enumerate(waiting) if rows], round_number + 1
        return [[draft.candidate(config.length_penalty) for draft in row] for row in drafts]

    def _extend(self, draft: "_Draft", written: GeneratedText, config: GenerationConfig) -> None:
        """Add to a draft the tokens that were generated in one context window, and decide whether it needs another."""
        left = config.max_new_tokens - len(draft.tokens)
        draft.tokens += written.tokens[:left]
        draft.log_probs += (written.log_probs or [])[:left]
        draft.score = written.score
        draft.text, is_stopped = _cut(
            decode_after(self.tokenizer, draft.prompt[-1:], draft.tokens), config.stop_strings
        )
        draft.goes_on = written.reason == "length" and not is_stopped and len(draft.tokens) < config.max_new_tokens

    def stream_after(self, prompt: list[int], config: GenerationConfig | None = None) -> Iterator[str]:
        """Yield the continuation of a prompt of token ids piece by piece. The pieces add up to `write_after`'s text."""
        config = config or self.generation
        (prompt,) = self.fit_prompts([prompt], config)
        pieces = TextStream(self.tokenizer, config.stop_strings, before=prompt[-1:])
        written: list[int] = []
        round_number = 0
        while len(written) < config.max_new_tokens:
            left = config.max_new_tokens - len(written)
            part = replace(self._part(config, left, round_number), stop_strings=())
            given = self._window(prompt + written)
            room = min(left, self.context - len(given) + 1)
            new = 0
            for token in stream(self.model, given, part, end=self.end):
                written.append(token)
                new += 1
                yield pieces.push(token)
                if pieces.is_stopped:
                    return
            if new < room:  # the text has ended
                break
            round_number += 1
        yield pieces.finish()

    def _part(self, config: GenerationConfig, left: int, round_number: int) -> GenerationConfig:
        """Return the config for generating at most `left` tokens in context window number `round_number` (from 0)."""
        # A model of one long text has never seen special tokens, so their logits are untrained.
        never = () if self.has_documents else tuple(sorted(self.tokenizer.special_ids))
        return replace(
            config,
            suppress_tokens=(*config.suppress_tokens, *never),
            max_new_tokens=left,
            min_new_tokens=max(0, config.min_new_tokens - (config.max_new_tokens - left)),
            seed=config.seed + round_number,
            prefix=() if round_number else config.prefix,
        )

    @override
    def fit_prompts(self, prompts: Sequence[list[int]], config: GenerationConfig) -> list[list[int]]:
        """Return prompts that fit into the context. With `truncate`, a longer prompt keeps its beginning only.

        A prompt may fill the context, because a text can be longer than the context.
        """
        return self.fit_inputs(prompts, self.context, lambda prompt: prompt[: self.context])

    def _window(self, text: list[int]) -> list[int]:
        """Return the prompt and what was written after it. If they exceed the context, return the last half context."""
        return text if len(text) <= self.context else text[-max(self.context // 2, 1) :]

    def scoring_method(self) -> str:
        """Describe the sliding windows in which `score` reads a long text."""
        return windows_in_words(self.window, max(1, self.window // 2))

    def score(self, examples: Sequence[Document], *, stride: int | None = None) -> "Scores":
        """Return bits per byte, nats per token and perplexity. Each token of each text is predicted once.

        A long text is read in windows of one context, `stride` tokens apart (by default half the context). If the model
        was trained on documents, the END token of each text is predicted and counted too. Bytes are counted after the
        normalization of our tokenizers, such as lower-casing.
        """
        from glassformer.metrics.perplexity import score_perplexity
        from glassformer.metrics.scores import Scores

        tokenizer, start = self.tokenizer, self.start
        texts = tokenizer.encode_plain_batch([example.text for example in examples])
        last = [self.end] if self.has_documents else []
        rows = [[*start, *tokens, *last] for tokens in texts]
        step = max(1, self.window // 2) if stride is None else stride
        size = self.batch_tokens or READING_BATCH_TOKENS
        nats = -sum(score_long_texts(self.model, rows, context=self.window, stride=step, batch_tokens=size))
        n_bytes = sum(
            len((tokenizer.normalize(one.text) if isinstance(tokenizer, Tokenizer) else one.text).encode())
            for one in examples
        )
        by_character = isinstance(tokenizer, Tokenizer) and tokenizer.is_of_characters
        scores = score_perplexity(nats, sum(len(row) - 1 for row in rows), n_bytes, by_character=by_character)
        n_unknown = 0 if tokenizer.unknown is None else sum(row.count(tokenizer.unknown) for row in texts)
        if n_unknown:  # <unk> is easy to predict, so the score is too good
            return Scores(scores.values, dict.fromkeys(scores.values, f"{n_unknown} unknown characters"))
        return scores


def windows_in_words(context: int, stride: int) -> str:
    """Describe how a text longer than the context is scored, such as "windows of 128 tokens every 64"."""
    return f"windows of {context} tokens every {stride}"


def _cut(text: str, stop_strings: Sequence[str]) -> tuple[str, bool]:
    places = [place for stop in stop_strings if (place := text.find(stop)) >= 0]
    return (text[: min(places)], True) if places else (text, False)
