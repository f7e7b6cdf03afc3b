"""Generate token ids from token ids, for any number of inputs, by greedy search, sampling or beam search.

Inputs are sorted by length and batched; results come in the caller's order. Up to rounding, the result of an input does
not depend on the other inputs.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from glassformer.decoding.beam import Hypothesis, search_by_beam
from glassformer.decoding.engine_generate import generate_with_engine, stream_with_engine
from glassformer.decoding.generation_config import GenerationConfig
from glassformer.decoding.open_batch import (
    GeneratedText,
    check_inputs,
    from_beam,
    generated_text_of,
    last_of,
    open_batch,
    sequences_of,
)
from glassformer.decoding.recorded_beam import can_search_recorded, search_recorded
from glassformer.decoding.step_loop import run_sequences
from glassformer.decoding.text_stream import Decodes
from glassformer.runtime.batches import compute_in_batches
from glassformer.runtime.choose_runner import ExpectedWork, choose_execution
from glassformer.runtime.cpu_workers import count_workers, limit_batch_tokens
from glassformer.runtime.step_runner import TextModel, inference


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
    if config.prompt_lookup_num_tokens:
        return generate_with_engine(
            model, inputs, config, end=end, begin=begin, with_log_probs=with_log_probs, tokenizer=tokenizer
        )
    copies = config.num_beams if config.num_beams > 1 else config.num_return_sequences
    lengths = [len(tokens) for tokens in inputs]

    def answer(chosen: list[int]) -> list[list[GeneratedText]]:
        batch = [list(inputs[index]) for index in chosen]
        if config.num_beams > 1:
            return _by_beam(model, batch, config, begin, end, tokenizer)
        return _by_sampling(model, batch, config, begin, end, with_log_probs, tokenizer)

    with inference(model):
        workers = count_workers(model, lengths, copies, needs_attention=bool(config.coverage_penalty))
        if workers > 1:  # loads the kernels once, before the threads start
            choose_execution(model, ExpectedWork(rows=1, capacity=1))
        limit = limit_batch_tokens(batch_tokens, workers, lengths, copies) // copies
        return compute_in_batches(lengths, answer, batch_tokens=limit, workers=workers, label="writing texts")


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
    if config.prompt_lookup_num_tokens:
        yield from stream_with_engine(model, tokens, config, end=end, begin=begin)
        return
    with ExitStack() as stack:
        with inference(model):
            opened = stack.enter_context(open_batch(model, [list(tokens)], config, begin, 1))
            (row,) = sequences_of(model, [list(tokens)], config, begin, opened.max_new)
            scores = opened.runner.prefill(opened.given, opened.mask)
            steps, n_yielded = run_sequences(opened.runner, [row], scores, end=end), 0
        while row.reason is None:
            failure = None
            with inference(model):  # around each step only, because the caller's own code runs in between
                try:
                    next(steps)
                except Exception as error:  # tokens of earlier steps may have come with the one that failed
                    failure = error
            yield from row.written[n_yielded:]
            n_yielded = len(row.written)
            if failure is not None:
                raise failure


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
        # Without stop strings a text is read only at its end, and decoding token by token costs as much as a step.
        early = tokenizer if config.stop_strings else None
        # The sequences are made while a GPU reads the prompts.
        scores = runner.prefill(given, mask, copies=copies)
        rows = sequences_of(model, batch, config, begin, max_new, with_log_probs=with_log_probs, tokenizer=early)
        for _ in run_sequences(runner, rows, scores, end=end):
            pass
    inputs = [tokens for tokens in batch for _ in range(copies)]
    texts = [
        generated_text_of(row, tokenizer, last_of(model, tokens)) for row, tokens in zip(rows, inputs, strict=True)
    ]
    return [texts[start : start + copies] for start in range(0, len(texts), copies)]


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
    return [from_beam(several, tokenizer, last_of(model, tokens)) for several, tokens in zip(found, batch, strict=True)]
