"""`generate` and `stream` by the engine, for requests that verify proposed tokens (`prompt_lookup.py`)."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from glassformer.decoding.engine import Engine
from glassformer.decoding.engine_request import EngineRequest
from glassformer.decoding.generation_config import GenerationConfig
from glassformer.decoding.open_batch import GeneratedText
from glassformer.decoding.text_stream import Decodes
from glassformer.progress import Step
from glassformer.runtime.step_runner import TextModel, inference

MAX_ROWS = 8
"""The most sequences that run at once. With more of them, reading proposals costs as much as single steps save."""
LEAST_ROOM = 256
"""The least capacity of a row. Capacities are powers of 2, so that many calls use the same recorded steps."""


def generate_with_engine(
    model: TextModel,
    inputs: Sequence[Sequence[int]],
    config: GenerationConfig,
    *,
    end: int,
    begin: int | None = None,
    with_log_probs: bool = False,
    tokenizer: Decodes | None = None,
) -> list[list[GeneratedText]]:
    """Return what `generate` returns for these arguments, computed by an engine."""
    requests = [EngineRequest(list(tokens), config, with_log_probs=with_log_probs) for tokens in inputs]
    n_done = 0
    opening = _open_engine(model, requests, end, begin, tokenizer)
    with inference(model), opening as engine, Step("writing texts", len(requests)) as step:
        while not engine.is_idle:
            engine.step()
            now_done = sum(request.is_done for request in requests)
            step.advance(now_done - n_done)
            n_done = now_done
    for request in requests:
        if request.error is not None:
            raise request.error
    return [request.texts for request in requests]


def stream_with_engine(
    model: TextModel, tokens: Sequence[int], config: GenerationConfig, *, end: int, begin: int | None = None
) -> Iterator[int]:
    """Yield what `stream` yields for these arguments, computed by an engine."""
    request = EngineRequest(list(tokens), config)
    n_yielded = 0
    with _open_engine(model, [request], end, begin, None) as engine:
        while not engine.is_idle:
            engine.step()
            written = request.rows[0].written if request.rows else []
            yield from written[n_yielded:]
            n_yielded = len(written)
    if request.error is not None:
        raise request.error


@contextmanager
def _open_engine(
    model: TextModel, requests: list[EngineRequest], end: int, begin: int | None, tokenizer: Decodes | None
) -> Iterator[Engine]:
    """Return a context manager that yields an engine with enough memory, in whose queue the requests wait."""
    rows = max((request.n_rows for request in requests), default=1)
    rows = max(rows, min(MAX_ROWS, sum(request.n_rows for request in requests)))
    longest = max((request.size_for(model) for request in requests), default=1)
    longest = max(LEAST_ROOM, 1 << (longest - 1).bit_length())
    engine = Engine(
        model, end=end, begin=begin, tokenizer=tokenizer, max_rows=rows, max_tokens=rows * longest, min_reuse=0
    )
    engine.enqueue(requests)
    try:
        yield engine
    finally:
        engine.close()
