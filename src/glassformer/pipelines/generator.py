"""A decoder that continues a text, or answers a conversation."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import overload

from glassformer.decoding import GenerationConfig, TextStream, stream
from glassformer.models import DecoderModel
from glassformer.pipelines.pipeline import (
    WRITING_BATCH_TOKENS,
    Candidate,
    LineAnswer,
    LineRequest,
    ManyTexts,
    Pipeline,
    answer_lines_with_text,
    answer_of,
    candidate_of,
    check_text,
    check_texts,
    each_text,
)
from glassformer.text import Tokenizer
from glassformer.text.pretrained_tokenizers import PretrainedTokenizer


class Generator(Pipeline):
    """A decoder-only model with its tokenizer, which continues texts, or answers messages if it has a chat template."""

    answers_messages: bool = False
    """Whether a line is a message to answer, unless the caller says so."""

    def __init__(
        self,
        model: DecoderModel,
        tokenizer: PretrainedTokenizer | Tokenizer,
        generation: GenerationConfig | None = None,
    ):
        self.model: DecoderModel = model
        self.tokenizer = tokenizer
        self.generation = generation or GenerationConfig(eos_token_id=tokenizer.ends)

    @property
    def end(self) -> int:
        """Id of the token that ends a text; -1, which is never generated, if the model has none."""
        return -1 if self.tokenizer.end is None else self.tokenizer.end

    @property
    def can_chat(self) -> bool:
        """Whether the model has a chat template, which `chat` needs."""
        return self.tokenizer.chat_template is not None

    @overload
    def run(self, lines: str, *, chat: bool | None = None, config: GenerationConfig | None = None) -> str: ...
    @overload
    def run(
        self, lines: ManyTexts, *, chat: bool | None = None, config: GenerationConfig | None = None
    ) -> list[str]: ...
    def run(
        self, lines: str | ManyTexts, *, chat: bool | None = None, config: GenerationConfig | None = None
    ) -> str | list[str]:
        """Return the continuation of each text; with `chat`, the answer to each text as a message.

        None is `answers_messages`, which only models of `glassformer train chat` and `train preference` do. One string
        gives one string. The texts are independent: they are no conversation.
        """
        request = LineRequest(chat=chat, generation=config)
        return each_text(lines, lambda several: self._run(several, request), "lines")

    def answer_lines(self, lines: Sequence[str], request: LineRequest) -> list[LineAnswer]:
        """Return the continuation of each line, or the answer to each line as a message (see `LineRequest.chat`).

        A blank line stays blank.
        """
        return answer_lines_with_text(lines, answer_of([], request), lambda texts: self.answer_texts(texts, request))

    def answer_texts(self, lines: Sequence[str], request: LineRequest) -> list[LineAnswer]:
        """Answer texts as `answer_lines` does, but an empty one too: the model then starts a new text."""
        lines = check_texts(lines, "lines")
        if not lines:
            return []
        is_chat = self.answers_messages if request.chat is None else request.chat
        if is_chat:
            prompts = [self.answer_to(as_messages(text, request.system)) for text in lines]
        else:
            prompts = [self.read(text) for text in lines]
        found = self.candidates_after(prompts, request.generation, with_scores=request.with_scores)
        if is_chat:  # an answer continues no text
            found = [[one._replace(text=one.text.removeprefix(" ")) for one in several] for several in found]
        return [answer_of(one, request) for one in found]

    def candidates_after(
        self, prompts: Sequence[list[int]], config: GenerationConfig | None = None, *, with_scores: bool = False
    ) -> list[list[Candidate]]:
        """Generate `config.num_return_sequences` continuations of each prompt, which is a list of token ids."""
        config = config or self.generation
        given = self.fit_prompts(prompts, config)
        found = self.write_tokens(
            given,
            config,
            end=self.end,
            with_log_probs=with_scores,
            tokenizer=self.tokenizer,
            batch_tokens=self.batch_tokens or WRITING_BATCH_TOKENS,
        )
        return [[candidate_of(one, one.text or "", config.length_penalty) for one in several] for several in found]

    def stream(self, text: str, config: GenerationConfig | None = None) -> Iterator[str]:
        """Yield the continuation of a text piece by piece, while it is generated."""
        return self.stream_after(self.read(check_text(text)), config)

    def chat(self, messages: Sequence[Mapping[str, str]], config: GenerationConfig | None = None) -> Iterator[str]:
        """Yield the answer to a conversation piece by piece. A message is `{"role": ..., "content": ...}`."""
        is_first = True
        for piece in self.stream_after(self.answer_to(messages), config):
            yield piece.removeprefix(" ") if is_first else piece
            is_first = is_first and not piece

    def stream_after(self, prompt: list[int], config: GenerationConfig | None = None) -> Iterator[str]:
        """Yield the continuation of a prompt of token ids piece by piece, while it is generated."""
        config = config or self.generation
        pieces = TextStream(self.tokenizer, config.stop_strings, before=prompt[-1:])
        plain = replace(config, stop_strings=())
        for token in stream(self.model, self.fit_prompts([prompt], config)[0], plain, end=self.end):
            yield pieces.push(token)
            if pieces.is_stopped:
                return
        yield pieces.finish()

    def read(self, text: str) -> list[int]:
        """Tokenize a prompt. An empty prompt becomes the token that begins a text, or the one that ends a text."""
        tokens = self.tokenizer.encode(text)
        if tokens:
            return tokens
        begin = self.tokenizer.begin if self.tokenizer.begin is not None else self.tokenizer.end
        if begin is None:
            raise ValueError("the prompt is empty, and the model has no token that begins a text: expected some text")
        return [begin]

    def answer_to(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Tokenize a conversation with the chat template, so that the model continues it with its answer."""
        from glassformer.text.chat_rendering import render_chat  # imports jinja2

        template = self.tokenizer.chat_template
        if template is None or isinstance(self.tokenizer, Tokenizer):
            raise ValueError("the model has no chat template: expected a model that was trained for conversations")
        return render_chat(messages, template, self.tokenizer)

    def fit_prompts(self, prompts: Sequence[list[int]], config: GenerationConfig) -> list[list[int]]:
        """Return prompts that fit into the model's context. With `truncate`, a longer prompt keeps its beginning only.

        A cut prompt is so short that `config.max_new_tokens` fit after it, but not shorter than half of the context.
        """
        limit = self.model.config.max_len
        kept = None if limit is None else max(limit - config.max_new_tokens, limit // 2, 1)
        return self.fit_inputs(prompts, limit, lambda prompt: prompt[:kept])


def as_messages(text: str, system: str | None = None) -> list[dict[str, str]]:
    """Return a conversation: the message `system`, unless it is None, and then `text` as the user's message."""
    first = [] if system is None else [{"role": "system", "content": system}]
    return [*first, {"role": "user", "content": text}]
