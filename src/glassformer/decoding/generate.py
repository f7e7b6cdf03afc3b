"""Generate token ids from token ids, for any number of inputs, by greedy search, sampling or beam search.

Inputs are sorted by length and batched; results come in the caller's order. Up to rounding, the result of an input does
not depend on the other inputs.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from glassformer.decoding.beam import Hypothesis, search_by_beam
from glassformer.decoding.generation_config import GenerationConfig
from glassformer.decoding.recorded_beam import can_search_recorded, search_recorded
from glassformer.decoding.rules import check_token_ids
from glassformer.decoding.step_loop import Reason, SequenceState, run_sequences
from glassformer.decoding.text_stream import Decodes, TextStream
from glassformer.models import DecoderModel, EncoderDecoderModel
from glassformer.nn.tensor_checks import check_id_list
from glassformer.progress import Step
from glassformer.runtime.choose_runner import ExpectedWork, open_runner
from glassformer.runtime.step_runner import StepRunner, TextModel, inference, limit_new_tokens
from glassformer.text.tokenizer import PAD


class GeneratedText(NamedTuple):
    """A generated text, without the prompt and without END."""

    tokens: list[int]
    score: float | None = None
    """Beam search only: log-probability / length ** length_penalty, plus the coverage term if there is one."""
    log_probs: list[float] | None = None
    """Log-probability of each token, and of END if the text ends with it, before rules and filters; None by default."""
    reason: Reason | None = None
    """Why the text ended; None for beam search."""
    text: str | None = None
    """The decoded text, cut before the first stop string, if a tokenizer was given."""


def generate(
    model: TextModel,
    inputs: Sequence[Sequence[int]],
    config: GenerationConfig | None = None,
    *,
    end: int,
    begin: int | None = None,
    with_log_probs: bool = False,
    tokenizer: Decodes | None = None,
    batch_tokens: int = 4096,
) -> list[list[GeneratedText]]:
    """Return `num_return_sequences` generated texts for each input.

    A decoder-only model continues its inputs. An encoder-decoder encodes them and generates after the token `begin`.
    `end` is the token that ends a text. `tokenizer` is needed for the text of the results and for stop strings. A batch
    holds at most `batch_tokens` padded input tokens, counted once per beam or sample, but at least one input.

    >>> import glassformer as gf
    >>> model = gf.build_model(gf.preset("tiny-gpt2"))
    >>> (texts,) = gf.generate(model, [[5, 6, 7]], gf.GenerationConfig(max_new_tokens=4, min_new_tokens=4), end=2)
    >>> len(texts[0].tokens)
    4
    """
    config = config or GenerationConfig()
    check_inputs(model, inputs, begin, config)
    results: list[list[GeneratedText]] = [[] for _ in inputs]
    copies = config.num_beams if config.num_beams > 1 else config.num_return_sequences
    waiting = sorted(range(len(inputs)), key=lambda index: -len(inputs[index]))
    with inference(model), Step("writing texts", len(inputs)) as step:
        while waiting:
            longest = len(inputs[waiting[0]])
            size = max(1, batch_tokens // (longest * copies))
            batch = [list(inputs[index]) for index in waiting[:size]]
            chosen, waiting = waiting[: len(batch)], waiting[len(batch) :]
            if config.num_beams > 1:
                found = _by_beam(model, batch, config, begin, end, tokenizer)
            else:
                found = _by_sampling(model, batch, config, begin, end, with_log_probs, tokenizer)
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
    """Yield the tokens of one text as they are generated, by greedy search or sampling, up to `end`, which is left out.

    `tokens` is the prompt or, for an encoder-decoder, the source; `begin` is the first token that its decoder reads.
    """
    config = config or GenerationConfig()
    if config.num_beams > 1 or config.num_return_sequences > 1:
        raise ValueError(
            f"num_beams={config.num_beams}, num_return_sequences={config.num_return_sequences}: "
            "expected 1 and 1, because only one text can be streamed"
        )
    check_inputs(model, [tokens], begin, config)
    with ExitStack() as stack:
        with inference(model):
            opened = stack.enter_context(open_batch(model, [list(tokens)], config, begin, 1))
            rows = sequences_of(model, [list(tokens)], config, begin, opened.max_new)
            steps = run_sequences(opened.runner, rows, opened.given, opened.mask, end=end)
        while True:
            with inference(model):  # around each step only, because the caller's own code runs in between
                choices = next(steps, None)
            if choices is None:
                return
            if choices[0].sequence.reason != "end":
                yield choices[0].token


def _by_sampling(
    model: TextModel,
    batch: list[list[int]],
    config: GenerationConfig,
    begin: int | None,
    end: int,
    with_log_probs: bool,
    tokenizer: Decodes | None,
) -> list[list[GeneratedText]]:
    copies = config.num_return_sequences
    with open_batch(model, batch, config, begin, copies) as (runner, given, mask, max_new):
        rows = sequences_of(model, batch, config, begin, max_new, with_log_probs=with_log_probs, tokenizer=tokenizer)
        if copies > 1:
            given = given.repeat_interleave(copies, 0)
            mask = None if mask is None else mask.repeat_interleave(copies, 0)
        for _ in run_sequences(runner, rows, given, mask, end=end):
            pass
    texts = [generated_text_of(row) for row in rows]
    return [texts[start : start + copies] for start in range(0, len(texts), copies)]


def sequences_of(
    model: TextModel,
    batch: list[list[int]],
    config: GenerationConfig,
    begin: int | None,
    max_new: list[int],
    *,
    with_log_probs: bool = False,
    tokenizer: Decodes | None = None,
) -> list[SequenceState]:
    """Return the initial state of each sequence to generate. The samples of one input are next to each other.

    `max_new` is the limit of new tokens of each input in `batch`.
    """
    if config.stop_strings and tokenizer is None:
        raise ValueError("stop_strings without a tokenizer: pass the tokenizer that decodes the text")
    return [
        SequenceState(
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


def generated_text_of(row: SequenceState) -> GeneratedText:
    """Return the `GeneratedText` of a sequence that was generated by greedy search or sampling."""
    log_probs = row.log_probs if row.with_log_probs else None
    return GeneratedText(row.written, None, log_probs, row.reason, None if row.stream is None else row.text)


def _by_beam(
    model: TextModel,
    batch: list[list[int]],
    config: GenerationConfig,
    begin: int | None,
    end: int,
    tokenizer: Decodes | None,
) -> list[list[GeneratedText]]:
    with open_batch(model, batch, config, begin, config.num_beams) as (runner, given, mask, max_new):
        search = search_recorded if can_search_recorded(runner, config) else search_by_beam
        found: list[list[Hypothesis]] = search(runner, given, mask, config, end=end, max_new=max_new)
    return [from_beam(hypotheses, tokenizer) for hypotheses in found]


def from_beam(found: list[Hypothesis], tokenizer: Decodes | None) -> list[GeneratedText]:
    """Return the `GeneratedText` of each finished hypothesis of a beam search, decoded if there is a tokenizer."""
    return [
        GeneratedText(h.tokens, h.score, text=None if tokenizer is None else tokenizer.decode(h.tokens)) for h in found
    ]


class OpenBatch(NamedTuple):
    """A batch that is ready for its first decoding step, as `open_batch` yields it."""

    runner: StepRunner
    given: Tensor
    """(B, T), the tokens before the new ones: the left-padded prompts, or BEGIN."""
    mask: Tensor | None
    """(B, T), False at padding; None if there is no padding."""
    max_new: list[int]
    """The limit of new tokens of each input."""


@contextmanager
def open_batch(
    model: TextModel,
    batch: list[list[int]],
    config: GenerationConfig,
    begin: int | None,
    copies: int,
    *,
    joins_batch: bool = False,
) -> Iterator[OpenBatch]:
    """Return a context manager that pads the inputs and yields them with a runner of `copies` rows per input.

    The runner is valid inside the block. With `joins_batch` its rows can be merged into a running batch (`engine.py`),
    where they stay valid after the block.
    """
    device = next(model.parameters()).device
    longest = max(map(len, batch))
    is_even = all(len(tokens) == longest for tokens in batch)
    lengths = torch.tensor([len(tokens) for tokens in batch], device=device)[:, None]
    work = ExpectedWork(
        rows=len(batch) * copies,
        capacity=0,
        copies=copies,
        shares_memory=config.num_beams > 1,
        needs_attention=bool(config.coverage_penalty),
        joins_batch=joins_batch,
    )
    if isinstance(model, DecoderModel):
        # Padded on the left, so that all of them end where the new tokens begin.
        given = torch.tensor([[PAD] * (longest - len(tokens)) + tokens for tokens in batch], device=device)
        mask = None if is_even else torch.arange(longest, 0, -1, device=device) <= lengths
        max_new = [limit_new_tokens(model, len(tokens), config.max_new_tokens) for tokens in batch]
        work = replace(work, capacity=longest + max(max_new))
    else:
        source = torch.tensor([tokens + [PAD] * (longest - len(tokens)) for tokens in batch], device=device)
        source_mask = None if is_even else torch.arange(longest, device=device) < lengths
        max_new = [limit_new_tokens(model, 1, _limit(config, len(tokens))) for tokens in batch]
        given, mask = torch.full((len(batch), 1), begin or 0, device=device), None
        model.target_embeddings.check("target", given)
        work = replace(work, capacity=max(max_new), source=source, source_mask=source_mask)
    with open_runner(model, work) as runner:
        yield OpenBatch(runner, given, mask, max_new)


def _limit(config: GenerationConfig, n_source: int) -> int:
    ratio = config.max_source_ratio
    return min(config.max_new_tokens, int(ratio * n_source) + 10) if ratio else config.max_new_tokens


def check_inputs(
    model: TextModel,
    inputs: Sequence[Sequence[int]],
    begin: int | None,
    config: GenerationConfig | None = None,
) -> None:
    """Raise ValueError if an input is empty, longer than the model's `max_len`, or holds an id that is no token.

    An encoder-decoder needs `begin`, the token after which it generates. A decoder-only model takes None. `begin` and
    the tokens that `config` names, such as `prefix`, are checked too. All checks are made on the host, before any id is
    copied to a GPU, because a wrong id there makes the GPU unusable for the rest of the process.
    """
    vocab_size, limit = model.config.vocab_size, model.config.max_len
    read_from = model.config.source_vocab if isinstance(model, EncoderDecoderModel) else vocab_size
    for index, tokens in enumerate(inputs):
        if not len(tokens):
            raise ValueError(f"input {index} is empty: expected at least one token")
        if limit is not None and len(tokens) > limit:
            raise ValueError(f"input {index} has {len(tokens)} tokens: expected at most max_len={limit}")
        check_id_list(f"input {index}", tokens, read_from)
    if config is not None:
        check_token_ids(config, vocab_size)
    if (begin is None) == isinstance(model, EncoderDecoderModel):
        expected = "the token it begins with" if begin is None else "none, for a decoder-only model continues its input"
        raise ValueError(f"begin={begin}: expected {expected}")
    if begin is not None and not 0 <= begin < vocab_size:
        raise ValueError(f"begin={begin}: expected a token from 0 to {vocab_size - 1}")
