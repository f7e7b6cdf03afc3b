"""A model that goes on writing: text in, the rest of it out; or a conversation in, the answer out."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from glassformer.decoding import GenerationConfig, TextStream, generate, stream
from glassformer.models import DecoderModel
from glassformer.text import Tokenizer
from glassformer.text.chat import render_chat
from glassformer.text.pretrained import PretrainedTokenizer


class Generator:
    """A decoder-only model with its tokenizer."""

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
        """The token that ends a text; one that is never chosen where the model knows none."""
        return -1 if self.tokenizer.end is None else self.tokenizer.end

    @property
    def can_chat(self) -> bool:
        """Whether the model says how a conversation is written."""
        return self.tokenizer.chat_template is not None

    def run(self, texts: Sequence[str], *, chat: bool = False, config: GenerationConfig | None = None) -> list[str]:
        """What follows each text, or with `chat` the answer to it; whatever else is asked for changes none."""
        config = config or self.generation
        prompts = [self.answer_to([{"role": "user", "content": text}]) if chat else self.read(text) for text in texts]
        prompts = [self._fit(prompt, config) for prompt in prompts]
        found = generate(self.model, prompts, config, end=self.end, tokenizer=self.tokenizer)
        return [written[0].text or "" for written in found]

    def stream(self, text: str, config: GenerationConfig | None = None) -> Iterator[str]:
        """What follows a text, as it is written."""
        return self.stream_after(self.read(text), config)

    def chat(self, messages: Sequence[Mapping[str, str]], config: GenerationConfig | None = None) -> Iterator[str]:
        """The answer to a conversation, `{"role": ..., "content": ...}` each, as it is written."""
        return self.stream_after(self.answer_to(messages), config)

    def stream_after(self, prompt: list[int], config: GenerationConfig | None = None) -> Iterator[str]:
        """What follows these tokens, as it is written."""
        config = config or self.generation
        pieces = TextStream(self.tokenizer, config.stop_strings)
        plain = replace(config, stop_strings=())
        for token in stream(self.model, self._fit(prompt, config), plain, end=self.end):
            yield pieces.push(token)
            if pieces.is_stopped:
                return
        yield pieces.finish()

    def read(self, text: str) -> list[int]:
        """The tokens of a prompt; an empty one is the token that begins a text."""
        tokens = self.tokenizer.encode(text)
        if tokens:
            return tokens
        begin = self.tokenizer.begin if self.tokenizer.begin is not None else self.tokenizer.end
        if begin is None:
            raise ValueError("the prompt is empty, and the model knows no token to begin with: expected some text")
        return [begin]

    def answer_to(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """The tokens of a conversation, up to where the answer begins."""
        template = self.tokenizer.chat_template
        if template is None or isinstance(self.tokenizer, Tokenizer):
            raise ValueError("the model has no chat template: expected one that was trained for conversations")
        return render_chat(messages, template, self.tokenizer)

    def _fit(self, prompt: list[int], config: GenerationConfig) -> list[int]:
        """The end of a prompt that is too long, so that there is room to write."""
        limit = self.model.config.max_len
        if limit is None or len(prompt) < limit:
            return prompt
        return prompt[-max(limit - config.max_new_tokens, limit // 2, 1) :]
