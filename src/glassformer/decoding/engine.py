"""Continuous batching: requests join and leave a running batch at every step. This is the core of a server.

One thread calls `step` repeatedly; any thread may call `submit` and `cancel`. Up to rounding, a request's result does
not depend on the other requests. A request passes through these stages:

1. It waits. `submit` refuses a request that could never fit, and any request while too many wait.
2. It is admitted, in the order of arrival, as soon as the pool (`runtime/cache_pool.py`) has a row for each of its
   sequences. A row that still holds the beginning of its prompt is reused (`prefix_reuse.py`).
3. Its prompt is read. Prompts of similar length are read together. A step reads at most `read_tokens` tokens, so a long
   prompt is read in parts. Running requests continue in between, and shorter prompts are read (`prompt_reader.py`).
4. It runs: all running sequences take each step together, each at its own position. Nothing is padded, and no cache
   is copied when another request joins. On a GPU the steps are recorded, and the next step is launched before the
   tokens of this one are read; on a CPU with the C++ kernels, steps of few sequences are replayed from C++. A request
   may ask for several proposed tokens to be verified per step (`running_batch.py`, `prompt_lookup.py`).
5. It leaves. Its row is kept, in case a later prompt begins with its text, until the room is needed.

A beam search has its own runner and cache and takes its steps between those of the batch. Memory is bounded: the pool
has room for `max_tokens` tokens and is allocated once; the caches of beam searches together hold at most as much again.
"""

import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from operator import index

from glassformer.decoding.beam import BeamStep, Hypothesis, beam_steps
from glassformer.decoding.engine_request import EngineFullError, EngineRequest, RequestTooLargeError
from glassformer.decoding.generation_config import GenerationConfig
from glassformer.decoding.open_batch import check_inputs, from_beam, last_of, open_batch, sequences_of
from glassformer.decoding.prefix_reuse import take_rows
from glassformer.decoding.prompt_reader import PromptReader, Reading
from glassformer.decoding.rules import check_token_ids
from glassformer.decoding.running_batch import RunningBatch
from glassformer.decoding.step_loop import TokenConstraint
from glassformer.decoding.text_stream import Decodes
from glassformer.models import DecoderModel
from glassformer.runtime.choose_runner import keep_pool, open_pool, update_pool
from glassformer.runtime.recorded_reading import flops_per_token
from glassformer.runtime.step_runner import TextModel, inference

READ_TOKENS, GPU_READ_TOKENS = 256, (2048, 8192)
"""The default of `Engine.read_tokens`. On a GPU it is between two numbers, as many tokens as GPU_READ_FLOPS allow."""
GPU_READ_FLOPS = 5e12
"""The arithmetic of about 10 ms of an H200. It takes that long to launch the kernels of a deep model anyway."""
MIN_REUSE, GPU_MIN_REUSE = 16, 128
"""The defaults of `Engine.min_reuse`."""


@dataclass(eq=False)
class _Beam:
    """A running beam search: its request and its steps."""

    request: EngineRequest
    steps: Generator[BeamStep, None, list[list[Hypothesis]]]


class Engine:
    """Generates texts for many requests at once, in one running batch.

    >>> import glassformer as gf
    >>> from glassformer.decoding import Engine
    >>> engine = Engine(gf.build_model(gf.preset("tiny-gpt2")), end=2, max_tokens=1024)
    >>> config = gf.GenerationConfig(max_new_tokens=4, min_new_tokens=4)
    >>> requests = [engine.submit(prompt, config) for prompt in ([5, 6, 7], [8])]
    >>> engine.run()
    >>> [len(request.texts[0].tokens) for request in requests]
    [4, 4]

    Args:
        end: The token that ends a text.
        begin: The token after which an encoder-decoder generates; None for a decoder-only model.
        tokenizer: Decodes the texts; needed for stop strings.
        max_rows: The most sequences that run at a time. A beam search counts as `num_beams` sequences.
        max_tokens: The number of tokens that the pool can hold. Rows have room for `max_tokens` / `max_rows` tokens.
            While a request needs more, rows are longer and there are fewer of them.
        max_waiting: The most requests that wait in the queue.
        read_tokens: The most prompt tokens that a step reads, but at least one source. By default 256, and on a GPU
            2048 to 8192, fewer for a larger model. While no request runs, a GPU reads more.
        min_reuse: The least number of tokens that a prompt must share with a text in the pool to reuse them. 0 turns
            reuse off. By default 16, and on a GPU 128, which it reads in the time that it takes to copy fewer.
    """

    def __init__(
        self,
        model: TextModel,
        *,
        end: int,
        begin: int | None = None,
        tokenizer: Decodes | None = None,
        max_rows: int = 32,
        max_tokens: int = 32768,
        max_waiting: int = 256,
        read_tokens: int | None = None,
        min_reuse: int | None = None,
    ):
        self.model, self.end, self.begin, self.tokenizer = model, end, begin, tokenizer
        self.max_rows, self.max_tokens, self.max_waiting = max_rows, max_tokens, max_waiting
        is_cuda = next(model.parameters()).is_cuda
        self.read_tokens = read_tokens or (_gpu_read_tokens(model) if is_cuda else READ_TOKENS)
        if min_reuse is None:
            min_reuse = GPU_MIN_REUSE if is_cuda else MIN_REUSE
        self.min_reuse = min_reuse if isinstance(model, DecoderModel) else 0
        self._waiting: deque[EngineRequest] = deque()
        self._beams: list[_Beam] = []
        self._reader: PromptReader | None = None
        """Reads prompts and holds the running batch; None before the first request without a beam."""
        self._lock = threading.Lock()

    def submit(
        self,
        tokens: Sequence[int],
        config: GenerationConfig | None = None,
        on_token: Callable[[int, int], None] | None = None,
        *,
        with_log_probs: bool = False,
        n_top_log_probs: int = 0,
        make_constraint: Callable[[], TokenConstraint] | None = None,
    ) -> EngineRequest:
        """Queue a request to generate from `tokens`, and return it.

        After each new token except END, `on_token` is called with the index of the sample and the token; beam search
        does not call it. With `with_log_probs` the texts get the log-probability of each token, and the sequences
        note the `n_top_log_probs` likeliest ones of each step. `make_constraint` is called once per sequence. Raises
        ValueError if the model cannot read the tokens, and EngineFullError if the queue is full or the request exceeds
        a limit of the engine.
        """
        config = config or GenerationConfig()
        # `index` refuses numbers that are not whole: reading them would fail, also for prompts read together with them.
        request = EngineRequest(
            [index(token) for token in tokens],
            config,
            on_token,
            with_log_probs,
            n_top_log_probs,
            make_constraint,
            on_cancel=self._withdraw,
        )
        self._check(request)
        rows = request.n_rows
        size = rows * request.size_for(self.model)
        if rows > self.max_rows or size > self.max_tokens:
            raise RequestTooLargeError(n_rows=rows, n_tokens=size, max_rows=self.max_rows, max_tokens=self.max_tokens)
        with self._lock:
            if len(self._waiting) >= self.max_waiting:
                raise EngineFullError(
                    f"{len(self._waiting)} requests are waiting: expected fewer than "
                    f"max_waiting={self.max_waiting}; try again later"
                )
            self._waiting.append(request)
        return request

    def enqueue(self, requests: Sequence[EngineRequest]) -> None:
        """Queue requests that the caller has checked and for which the pool has room, however many wait."""
        for request in requests:
            request.on_cancel = self._withdraw
        with self._lock:
            self._waiting.extend(requests)

    @property
    def is_idle(self) -> bool:
        """Whether no request waits or runs."""
        is_running = self._reader is not None and (self._reader.readings or self._reader.batch.members)
        return not (self._waiting or self._beams or is_running)

    @property
    def n_rows(self) -> int:
        """The number of sequences that run or whose prompt is being read. A beam search counts as `num_beams`."""
        in_pool = 0 if self._reader is None else self._reader.batch.runner.pool.n_busy
        return in_pool + sum(beam.request.n_rows for beam in self._beams)

    def run(self) -> None:
        """Call `step` until no request waits or runs."""
        with inference(self.model):
            while not self.is_idle:
                self._step()

    def step(self) -> None:
        """Remove ended and canceled requests, start waiting ones, then advance each running sequence by one token."""
        with inference(self.model):
            self._step()

    @property
    def reading_sizes(self) -> list[tuple[int, int]]:
        """The numbers of prompts and of tokens for which a GPU records how prompts are read; empty elsewhere."""
        return self._open_reader().batch.runner.reading_sizes

    def forget_texts(self) -> None:
        """Forget the texts that the pool has kept. No request may wait or run."""
        if self._reader is not None:
            self._reader.batch.runner.pool.reset()

    def close(self) -> None:
        """Drop all requests, and leave the pool and its recorded steps to the next engine of the model."""
        with self._lock:
            self._waiting.clear()
        for beam in self._beams:
            beam.steps.close()
        self._beams.clear()
        if self._reader is not None:
            keep_pool(self.model, self._reader.batch.runner)
            self._reader = None

    def _step(self) -> None:
        self._leave()
        self._admit()
        if self._reader is not None:
            self._reader.read()
        self._step_beams()
        if self._reader is not None and self._reader.batch.members:
            self._reader.batch.step()

    def _check(self, request: EngineRequest) -> None:
        """Raise ValueError for tokens that the model cannot read: they would fail together with other requests."""
        check_inputs(self.model, [request.tokens], self.begin, request.config)

    def _withdraw(self, request: EngineRequest) -> None:
        """Remove a canceled request from the queue, if it still waits there (`EngineRequest.on_cancel`)."""
        with self._lock:
            if request in self._waiting:
                self._waiting.remove(request)
                request.done.set()

    def _leave(self) -> None:
        """Remove canceled requests."""
        for beam in [beam for beam in self._beams if beam.request.is_canceled]:
            beam.steps.close()
            beam.request.done.set()
            self._beams.remove(beam)
        if self._reader is not None:
            self._reader.leave()
            self._reader.batch.leave()

    def _admit(self) -> None:
        """Start waiting requests in their order, as long as there is room."""
        n_started = 0
        while (request := self._next_that_fits()) is not None:
            try:
                self._start(request)
                n_started += 1
            except Exception as error:
                request.fail(error)
        if n_started and self._reader is not None:  # not for each request, because it looks at every module
            update_pool(self.model, self._reader.batch.runner)

    def _next_that_fits(self) -> EngineRequest | None:
        """Remove the first request from the queue and return it; None if there is none or it does not fit."""
        with self._lock:
            has_room = bool(self._waiting) and self._make_room(self._waiting[0])
            return self._waiting.popleft() if has_room else None

    def _make_room(self, request: EngineRequest) -> bool:
        """Return whether a request fits. For a request without a beam, space is made in the pool."""
        if self.n_rows + request.n_rows > self.max_rows:
            return False
        if request.config.num_beams > 1:
            beams = [request, *(beam.request for beam in self._beams)]
            return sum(beam.n_rows * beam.size_for(self.model) for beam in beams) <= self.max_tokens
        reader = self._open_reader()
        pool, size = reader.batch.runner.pool, request.size_for(self.model)
        if pool.has_room(request.n_rows, size):
            return True
        users = [
            *(member.request for member in reader.batch.members),
            *(reading.request for reading in reader.readings),
        ]
        needs = [user.size_for(self.model) for user in {id(user): user for user in users}.values()]
        return pool.fit(request.n_rows, size, needs)

    def _open_reader(self) -> PromptReader:
        if self._reader is None:
            runner = open_pool(self.model, max_rows=self.max_rows, max_tokens=self.max_tokens)
            batch = RunningBatch(runner, end=self.end, keeps_texts=self.min_reuse > 0)
            self._reader = PromptReader(batch, begin=self.begin, read_tokens=self.read_tokens)
        return self._reader

    def _start(self, request: EngineRequest) -> None:
        """Take rows of the pool for a request and prepare to read its prompt; or start a beam search."""
        config = request.config
        if config.num_beams > 1:
            self._beams.append(_Beam(request, self._search(request)))
            return
        check_token_ids(config, self.model.config.vocab_size)
        request.rows = sequences_of(
            self.model,
            [request.tokens],
            config,
            self.begin,
            [request.max_new_for(self.model)],
            with_log_probs=request.with_log_probs,
            tokenizer=self.tokenizer,
            n_top_log_probs=request.n_top_log_probs,
            make_constraint=request.make_constraint,
        )
        reader = self._open_reader()
        places, request.n_reused = take_rows(reader.batch.runner.pool, request.tokens, request.n_rows, self.min_reuse)
        reader.readings.append(Reading(request, places))

    def _search(self, request: EngineRequest) -> Generator[BeamStep, None, list[list[Hypothesis]]]:
        """Yield the steps of a request's beam search. The runner is released when the generator ends or is closed."""
        opening = open_batch(self.model, [request.tokens], request.config, self.begin, request.config.num_beams)
        with opening as (runner, given, mask, max_new):
            return (yield from beam_steps(runner, given, mask, request.config, end=self.end, max_new=max_new))

    def _step_beams(self) -> None:
        for beam in list(self._beams):
            try:
                next(beam.steps)
            except StopIteration as stop:
                (found,) = stop.value
                before = last_of(self.model, beam.request.tokens)
                beam.request.texts = from_beam(found, self.tokenizer, before)
                beam.request.done.set()
                self._beams.remove(beam)
            except Exception as error:
                beam.request.fail(error)
                self._beams.remove(beam)


def _gpu_read_tokens(model: TextModel) -> int:
    least, most = GPU_READ_TOKENS
    return max(least, min(most, int(GPU_READ_FLOPS / flops_per_token(model))))
