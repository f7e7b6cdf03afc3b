"""The front door: token ids in, token ids out, for any number of inputs, by any search.

Inputs are sorted by length and put into batches of like ones; results come in the caller's order. What is written for
an input does not depend on what else was asked for.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from glassformer.decoding.beam import Hypothesis, search_by_beam
from glassformer.decoding.generation_config import GenerationConfig
from glassformer.decoding.recorded import RecordedWriter, Recordings, recordings_of
from glassformer.decoding.recorded_beam import can_search_recorded, search_recorded
from glassformer.decoding.rows import Reason, Row, write_rows
from glassformer.decoding.text_stream import Decodes, TextStream
from glassformer.decoding.writer import TextModel, Writer, room_for, writing
from glassformer.models import DecoderModel, EncoderDecoderModel
from glassformer.progress import Step
from glassformer.text.tokenizer import PAD


class Written(NamedTuple):
    """A text that was written, without what it stands after and without END."""

    tokens: list[int]
    score: float | None = None
    """Of a beam: log-probability / length ** length_penalty."""
    log_probs: list[float] | None = None
    """Of each token, and of the end where there is one, by the model alone; where they were asked for."""
    reason: Reason | None = None
    """Why it ended; unknown for a beam's."""
    text: str | None = None
    """Where a tokenizer was given: cut before the first stop string."""


def generate(
    model: TextModel,
    inputs: Sequence[Sequence[int]],
    config: GenerationConfig | None = None,
    *,
    end: int,
    begin: int | None = None,
    with_log_probs: bool = False,
    tokenizer: Decodes | None = None,
    max_batch_tokens: int = 4096,
) -> list[list[Written]]:
    """`num_return_sequences` texts for each input.

    A decoder-only model continues its inputs. An encoder-decoder reads them, as they are, and writes after `begin`. A
    batch holds at most `max_batch_tokens` padded input tokens, copies for beams and samples included, or one input.
    With a tokenizer each result has its text too, and stop strings can be looked for.

    >>> import glassformer as gf
    >>> model = gf.build_model(gf.preset("tiny-gpt2"))
    >>> (texts,) = gf.generate(model, [[5, 6, 7]], gf.GenerationConfig(max_new_tokens=4, min_new_tokens=4), end=2)
    >>> len(texts[0].tokens)
    4
    """
    config = config or GenerationConfig()
    check_inputs(model, inputs, begin)
    results: list[list[Written]] = [[] for _ in inputs]
    copies = config.num_beams if config.num_beams > 1 else config.num_return_sequences
    waiting = sorted(range(len(inputs)), key=lambda index: -len(inputs[index]))
    with writing(model), Step("writing texts", len(inputs)) as step:
        while waiting:
            longest = len(inputs[waiting[0]])
            size = max(1, max_batch_tokens // (longest * copies))
            batch = [list(inputs[index]) for index in waiting[:size]]
            chosen, waiting = waiting[: len(batch)], waiting[len(batch) :]
            if config.num_beams > 1:
                found = _by_beam(model, batch, config, begin, end, tokenizer)
            else:
                found = _by_rows(model, batch, config, begin, end, with_log_probs, tokenizer)
            for index, texts in zip(chosen, found, strict=True):
                results[index] = texts
            step.advance(len(chosen))
    return results


def stream(
    model: TextModel,
    tokens: Sequence[int],
    config: GenerationConfig | None = None,
    *,
    end: int,
    begin: int | None = None,
) -> Iterator[int]:
    """The tokens of one text, as they are written: by greedy search or sampling. Stop asking to stop it."""
    config = config or GenerationConfig()
    if config.num_beams > 1 or config.num_return_sequences > 1:
        raise ValueError("a beam or several texts cannot be streamed: expected num_beams=1, num_return_sequences=1")
    check_inputs(model, [tokens], begin)
    with writing(model):
        writer, given, mask, max_new = open_writer(model, [list(tokens)], config, begin, 1)
        rows = rows_of(model, [list(tokens)], config, begin, max_new)
        steps = write_rows(writer, rows, given, mask, end=end)
    while True:
        with writing(model):  # around each step, for what the caller does in between is not writing
            choices = next(steps, None)
        if choices is None:
            return
        if choices[0].row.reason != "end":
            yield choices[0].token


def _by_rows(
    model: TextModel,
    batch: list[list[int]],
    config: GenerationConfig,
    begin: int | None,
    end: int,
    with_log_probs: bool,
    tokenizer: Decodes | None,
) -> list[list[Written]]:
    copies = config.num_return_sequences
    writer, given, mask, max_new = open_writer(model, batch, config, begin, copies)
    rows = rows_of(model, batch, config, begin, max_new, with_log_probs=with_log_probs, tokenizer=tokenizer)
    if copies > 1:
        given = given.repeat_interleave(copies, 0)
        mask = None if mask is None else mask.repeat_interleave(copies, 0)
    for _ in write_rows(writer, rows, given, mask, end=end):
        pass
    texts = [as_written(row) for row in rows]
    return [texts[start : start + copies] for start in range(0, len(texts), copies)]


def rows_of(
    model: TextModel,
    batch: list[list[int]],
    config: GenerationConfig,
    begin: int | None,
    max_new: list[int],
    *,
    with_log_probs: bool = False,
    tokenizer: Decodes | None = None,
) -> list[Row]:
    """A row for each text that is to be written, samples of one input next to each other."""
    if config.stop_strings and tokenizer is None:
        raise ValueError("stop_strings were given without a tokenizer: expected one, to look for them in the text")
    return [
        Row(
            config,
            tokens if isinstance(model, DecoderModel) else [begin or 0],
            limit,
            number,
            stream=None if tokenizer is None else TextStream(tokenizer, config.stop_strings),
            with_log_probs=with_log_probs,
        )
        for tokens, limit in zip(batch, max_new, strict=True)
        for number in range(config.num_return_sequences)
    ]


def as_written(row: Row) -> Written:
    """What has become of a row."""
    log_probs = row.log_probs if row.with_log_probs else None
    return Written(row.written, None, log_probs, row.reason, None if row.stream is None else row.text)


def _by_beam(
    model: TextModel,
    batch: list[list[int]],
    config: GenerationConfig,
    begin: int | None,
    end: int,
    tokenizer: Decodes | None,
) -> list[list[Written]]:
    writer, given, mask, max_new = open_writer(model, batch, config, begin, config.num_beams)
    search = search_recorded if can_search_recorded(writer, config) else search_by_beam
    found: list[list[Hypothesis]] = search(writer, given, mask, config, end=end, max_new=max_new)
    return [from_beam(hypotheses, tokenizer) for hypotheses in found]


def from_beam(found: list[Hypothesis], tokenizer: Decodes | None) -> list[Written]:
    """What a search has found."""
    return [Written(h.tokens, h.score, text=None if tokenizer is None else tokenizer.decode(h.tokens)) for h in found]


def open_writer(
    model: TextModel,
    batch: list[list[int]],
    config: GenerationConfig,
    begin: int | None,
    copies: int,
    *,
    may_record: bool = True,
) -> tuple[Writer, Tensor, Tensor | None, list[int]]:
    """A writer with `copies` rows an input; what these stand after (B, T), its mask, and how much each may write.

    Where a model's steps are recorded, the writer plays them, unless it may not: one that is to be joined with others.
    """
    device = next(model.parameters()).device
    recordings = recordings_of(model) if may_record and not config.coverage_penalty else None
    longest = max(map(len, batch))
    is_even = all(len(tokens) == longest for tokens in batch)
    if isinstance(model, DecoderModel):
        # Padded on the left, so that all of them end where writing begins.
        given = torch.tensor([[PAD] * (longest - len(tokens)) + tokens for tokens in batch], device=device)
        places = torch.arange(longest, 0, -1, device=device)
        mask = None if is_even else places <= torch.tensor([len(tokens) for tokens in batch], device=device)[:, None]
        max_new = [room_for(model, len(tokens), config.max_new_tokens) for tokens in batch]
        writer = _new_writer(model, recordings, rows=len(batch) * copies, capacity=longest + max(max_new))
        return writer, given, mask, max_new
    source = torch.tensor([tokens + [PAD] * (longest - len(tokens)) for tokens in batch], device=device)
    places = torch.arange(longest, device=device)
    real = None if is_even else places < torch.tensor([len(tokens) for tokens in batch], device=device)[:, None]
    max_new = [room_for(model, 1, _limit(config, len(tokens))) for tokens in batch]
    given = torch.full((len(batch), 1), begin or 0, device=device)
    if recordings is not None and recordings.should_read(source) and (config.num_beams > 1 or copies == 1):
        rows = len(batch) * copies
        model.source_embeddings.check("source", source)  # a recording does not look
        model.target_embeddings.check("target", given)
        recorded = RecordedWriter(model, recordings, rows, max(max_new), memory_mask=real, source=source)
        return recorded, given, None, max_new
    memory = EncoderDecoderModel.encode(model, source, real)  # the documents' own `encode` takes other masks
    if config.num_beams == 1 and copies > 1:  # beams stay together and share a memory; samples leave one by one
        memory = memory.repeat_interleave(copies, 0)
        real = None if real is None else real.repeat_interleave(copies, 0)
    writer = _new_writer(model, recordings, len(batch) * copies, max(max_new), memory, real)
    return writer, given, None, max_new


def _new_writer(
    model: TextModel,
    recordings: Recordings | None,
    rows: int,
    capacity: int,
    memory: Tensor | None = None,
    memory_mask: Tensor | None = None,
) -> Writer:
    if recordings is not None:
        return RecordedWriter(model, recordings, rows, capacity, memory, memory_mask)
    if isinstance(model, DecoderModel):
        return Writer(model, model.new_cache(rows, capacity))
    assert memory is not None
    return Writer(model, model.new_cache(rows, capacity, memory.shape[1], len(memory)), memory, memory_mask)


def _limit(config: GenerationConfig, n_source: int) -> int:
    ratio = config.max_source_ratio
    return min(config.max_new_tokens, int(ratio * n_source) + 10) if ratio else config.max_new_tokens


def check_inputs(model: TextModel, inputs: Sequence[Sequence[int]], begin: int | None) -> None:
    """Raise unless the model can read all of them."""
    for index, tokens in enumerate(inputs):
        if not len(tokens):
            raise ValueError(f"input {index} is empty: expected at least one token to read")
        limit = model.config.max_len
        if limit is not None and len(tokens) > limit:
            raise ValueError(f"input {index} has {len(tokens)} tokens: expected at most max_len={limit}")
    if (begin is None) == isinstance(model, EncoderDecoderModel):
        expected = "the token it begins with" if begin is None else "none, for a decoder-only model continues its input"
        raise ValueError(f"begin={begin}: expected {expected}")
