"""The tokens that a model reads and writes for one text."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from glassformer.decoding import GenerationConfig
from glassformer.decoding.open_batch import last_of
from glassformer.decoding.text_stream import decode_after
from glassformer.inspect.explain_options import ExplainOptions
from glassformer.models import DecoderModel, EncoderDecoderModel, EncoderModel
from glassformer.models.costs import count_parameters
from glassformer.models.transformer import Model
from glassformer.pipelines.blanks import put_marks, without_blanks
from glassformer.pipelines.encoder_pipeline import EncoderPipeline
from glassformer.pipelines.generator import Generator
from glassformer.pipelines.mask_filler import MaskFiller, mask_of
from glassformer.pipelines.pipeline import Pipeline
from glassformer.pipelines.seq2seq_pipeline import Seq2SeqPipeline
from glassformer.pipelines.text_to_text import TextToText
from glassformer.text.encoded import Encoded

AnyModel = EncoderModel | DecoderModel | EncoderDecoderModel


def n_weights(model: Model) -> int:
    """Return the number of weights. Quantized weights count, although they are no parameters of the module."""
    return max(model.n_parameters(), count_parameters(model.config))


@dataclass
class SideTokens:
    """The tokens that one stack reads."""

    ids: list[int]
    tokenizer: Any
    """A `Tokenizer` or `PretrainedTokenizer`."""
    text: str = ""
    spans: list[list[int] | None] = field(default_factory=list)
    """The characters of the text that each token covers; None for a special token."""
    n_given: int = 0
    """How many of the tokens were given to a model that writes. The tokens after them are its own."""

    def __post_init__(self) -> None:
        if not self.spans:
            self.spans = find_spans(self.ids, self.tokenizer, self.text)

    def to_json(self) -> dict[str, Any]:
        """Return the tokens as the page takes them."""
        special = self.tokenizer.special_ids
        return {
            "ids": self.ids,
            "pieces": self.tokenizer.tokens(self.ids),
            "special": [index in special for index in self.ids],
            "offsets": self.spans,
            "prompt": self.n_given,
        }


def written_text(model: Any, side: SideTokens) -> str:
    """Return the text of the tokens that a model wrote after those that were given."""
    given, written = side.ids[: side.n_given], side.ids[side.n_given :]
    return decode_after(side.tokenizer, last_of(model, given), written)


@dataclass
class ModelText:
    """The inputs of one forward pass over a text, and the tokens behind them."""

    model: AnyModel
    source: SideTokens
    """The input of an encoder, or the prompt of a decoder."""
    target: SideTokens | None = None
    """The input of a decoder: the prompt and the written tokens, or BEGIN and the written tokens."""
    token_types: list[int] | None = None
    output: Tensor | None = None
    """The output of the model for this text, once it is known (`record_text`)."""

    def inputs(self, copies: int = 1) -> dict[str, Tensor]:
        """Return the keyword arguments of the model's forward pass, repeated for a batch of `copies` rows."""
        device = next(self.model.parameters()).device

        def batch(ids: Sequence[int]) -> Tensor:
            return torch.tensor([list(ids)], device=device).expand(copies, -1)

        if isinstance(self.model, EncoderDecoderModel):
            assert self.target is not None
            return {"source": batch(self.source.ids), "target": batch(self.target.ids)}
        whole = self.source if self.target is None else self.target
        found = {"tokens": batch(whole.ids)}
        if self.token_types is not None and self.model.config.token_types:
            found["token_types"] = batch(self.token_types)
        return found

    @property
    def next_id(self) -> int | None:
        """The most likely token after the target: END, unless the search was stopped; None without logits."""
        if self.model.config.head != "language_model":
            return None
        if self.output is None:
            with torch.no_grad():
                self.output = self.model(**self.inputs())
        return int(self.output[0, -1].argmax())

    @property
    def answers(self) -> list[int | None]:
        """The token after each position of the target."""
        assert self.target is not None
        return [*self.target.ids[1:], self.next_id]


def find_spans(ids: Sequence[int], tokenizer: Any, text: str) -> list[list[int] | None]:
    """Return the characters of `text` that each token covers, where its tokens are found among `ids`, else None."""
    spans: list[list[int] | None] = [None] * len(ids)
    encoded = tokenizer.offsets_batch([(text, None)])[0]
    own = [(token, span) for token, span, source in zip(*encoded[:2], encoded.sources, strict=True) if source == 0]
    wanted = [token for token, _ in own]
    for start in range(min(3, len(ids))):  # after BEGIN, END or a classification token
        part = list(ids[start : start + len(wanted)])
        if part and part == wanted[: len(part)]:
            for place, (_, span) in enumerate(own[: len(part)], start):
                spans[place] = list(span)
            break
    return spans


class Writer(Protocol):
    """Writes the tokens of a text after `given`, the prompt of a decoder or the source of an encoder-decoder."""

    def __call__(
        self, model: Any, given: list[int], config: GenerationConfig, *, begin: int | None, end: int
    ) -> list[int]:
        """Return the tokens, without `end`."""


def write_tokens(model: Any, given: list[int], config: GenerationConfig, *, begin: int | None, end: int) -> list[int]:
    """Return the tokens that the model writes by `generate`."""
    from glassformer.decoding import generate

    return list(generate(model, [given], config, begin=begin, end=end)[0][0].tokens)


def read_text(pipe: Pipeline, text: str, options: ExplainOptions, write: Writer = write_tokens) -> ModelText:
    """Tokenize a text as the pipeline does, and let the model write its answer with `write` if it writes texts.

    With a `target` in the options, the model reads that text instead of writing one.
    """
    if isinstance(pipe, Generator):
        return _of_decoder(pipe, text, options, write)
    if isinstance(pipe, Seq2SeqPipeline | TextToText):
        return _of_encoder_decoder(pipe, text, options, write)
    return _of_encoder(pipe, text)


def source_tokenizer(pipe: Any) -> Any:
    """Return the tokenizer of the texts that a pipeline reads."""
    if isinstance(pipe, Seq2SeqPipeline | TextToText):
        return pipe.source_tokenizer
    return pipe.reader.tokenizer if isinstance(pipe, EncoderPipeline) else pipe.tokenizer


def target_tokenizer(pipe: Any) -> Any:
    """Return the tokenizer of the texts that a pipeline writes; that of the texts that it reads if it writes none."""
    return pipe.target_tokenizer if isinstance(pipe, Seq2SeqPipeline | TextToText) else source_tokenizer(pipe)


def _of_encoder(pipe: Any, text: str) -> ModelText:
    model, tokenizer = pipe.model, source_tokenizer(pipe)
    limit = getattr(pipe, "max_len", None) or model.config.max_len
    if isinstance(pipe, MaskFiller):
        line, places = without_blanks(text)
        read = pipe.reader.read([(line, None)])[0]
        ids = put_marks(read, places, [mask_of(pipe.reader)] * len(places))
        spans: list[list[int] | None] = [None] * len(ids) if places else [list(span) for span in read.spans]
        return ModelText(model, SideTokens(ids[:limit], tokenizer, text, spans[:limit]), None, [0] * len(ids[:limit]))
    first, tab, second = text.partition("\t")
    read = tokenizer.offsets_batch([(first, second if tab else None)])[0]
    if limit is not None and len(read) > limit:
        read = read.cut(limit)
    if not read.ids:
        raise ValueError("the text has no tokens: expected some text")
    source = SideTokens(read.ids, tokenizer, text, _spans(read, len(first) + 1))
    return ModelText(model, source, None, read.token_types)


def _spans(read: Encoded, second_starts: int) -> list[list[int] | None]:
    """Return the spans of the tokens of one text or of two with a tab between them."""
    shift = {0: 0, 1: second_starts}
    return [
        None if source is None else [begin + shift[source], end + shift[source]]
        for (begin, end), source in zip(read.spans, read.sources, strict=True)
    ]


def _of_decoder(pipe: Generator, text: str, options: ExplainOptions, write: Writer) -> ModelText:
    model, limit = pipe.model, pipe.model.config.max_len
    (prompt,) = pipe.fit_inputs([pipe.read(text)], limit, lambda ids: ids[:limit])
    source = SideTokens(prompt, pipe.tokenizer, text, n_given=len(prompt))
    if options.target is not None:
        ids = [*prompt, *_plain(pipe.tokenizer, options.target)]
        _check_room("target", len(ids), limit)
        return ModelText(model, source, _whole(source, ids))
    written: list[int] = []
    if limit is None or len(prompt) < limit:
        config = writing_settings(pipe, ModelText(model, source), options)
        written = write(model, prompt, config, begin=None, end=pipe.end)
    ids = [*prompt, *written]
    return ModelText(model, source, _whole(source, ids))


def _whole(source: SideTokens, ids: list[int]) -> SideTokens:
    spans = [*source.spans, *[None] * (len(ids) - len(source.ids))]
    return SideTokens(ids, source.tokenizer, source.text, spans, n_given=len(source.ids))


def _of_encoder_decoder(pipe: Any, text: str, options: ExplainOptions, write: Writer) -> ModelText:
    model, tokenizer, limit = pipe.model, pipe.target_tokenizer, pipe.model.config.max_len
    if isinstance(pipe, Seq2SeqPipeline):
        (source,) = pipe.read_sources([pipe.encode_source(text)])
    else:
        pipe.check_languages()
        (source,) = pipe.read_sources([text])
    if not source:
        raise ValueError("the text has no tokens: expected some text")
    if options.target is not None:
        written = _plain(tokenizer, options.target)
        _check_room("target", len(written) + 1, limit)
    else:
        config = options.generation(pipe.generation, max_new_tokens=options.max_tokens)
        written = write(model, source, config, begin=pipe.begin, end=end_of(pipe))
        written = written[: len(written) if limit is None else limit - 1]
    ids = [pipe.begin, *written]
    target = SideTokens(ids, tokenizer, options.target or "", n_given=1)
    side = SideTokens(source, pipe.source_tokenizer, text, n_given=len(source))
    return ModelText(model, side, target)


def writing_settings(pipe: Any, read: ModelText, options: ExplainOptions) -> GenerationConfig:
    """Return the generation settings with which a pipeline writes the text of an explanation."""
    room, limit = options.max_tokens, read.model.config.max_len
    if isinstance(pipe, Generator):
        room = room if limit is None else min(room, limit - len(read.source.ids))
    config = options.generation(pipe.generation, max_new_tokens=room)
    # A model of one long text has never seen special tokens (`LanguageModel`).
    never = () if getattr(pipe, "has_documents", True) else tuple(sorted(pipe.tokenizer.special_ids))
    return replace(config, suppress_tokens=(*config.suppress_tokens, *never))


def end_of(pipe: Any) -> int:
    """Return the id that ends a pipeline's texts; -1, which is never written, if there is none."""
    end = pipe.target_tokenizer.end if isinstance(pipe, TextToText) else pipe.end
    return -1 if end is None else int(end)


def _plain(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode_plain(text) if hasattr(tokenizer, "encode_plain") else tokenizer.encode(text)
    return ids


def _check_room(name: str, length: int, limit: int | None) -> None:
    if limit is not None and length > limit:
        raise ValueError(f"{name} makes {length} tokens: expected at most {limit}, the most that the model reads")
