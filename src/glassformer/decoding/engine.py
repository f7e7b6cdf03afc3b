"""Continuous batching: requests join and leave a running batch at every step.

One thread calls `step` repeatedly; any thread may call `submit` and `cancel`. Up to rounding, a request's result does
not depend on the other requests. Memory is bounded: requests wait while the batch is full, and are refused while too
many wait.
"""

import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

import torch

from glassformer.decoding.beam import BeamStep, Hypothesis, beam_steps
from glassformer.decoding.generate import (
    GeneratedText,
    check_inputs,
    from_beam,
    generated_text_of,
    open_batch,
    sequences_of,
)
from glassformer.decoding.generation_config import GenerationConfig
from glassformer.decoding.step_loop import SequenceState, TokenChooser
from glassformer.decoding.text_stream import Decodes
from glassformer.runtime.choose_runner import choose_kernels
from glassformer.runtime.step_runner import StepRunner, TextModel, inference


class EngineFullError(RuntimeError):
    """`Engine.submit` refused a request: too many requests wait, or this one alone exceeds a limit of the engine."""


@dataclass(eq=False)
class EngineRequest:
    """A generation request and its progress, as `Engine.submit` returns it. Read `texts` once `is_done`."""

    tokens: list[int]
    config: GenerationConfig
    on_token: Callable[[int, int], None] | None = None
    """Called with the sample index and the token after each token; not for beam search."""
    rows: list[SequenceState] = field(default_factory=list)
    """The sequences of the request, one per sample; empty for beam search and while the request waits."""
    texts: list[GeneratedText] = field(default_factory=list)
    error: Exception | None = None
    """Why the request failed, if it did."""
    is_canceled: bool = False
    done: threading.Event = field(default_factory=threading.Event)
    on_cancel: Callable[["EngineRequest"], None] | None = None
    """Called by `cancel`. The engine sets it, to remove a waiting request from its queue."""

    @property
    def is_done(self) -> bool:
        """Whether the request is complete, has failed, or has left the engine after `cancel`."""
        return self.done.is_set()

    def cancel(self) -> None:
        """Stop the request: it leaves the queue at once, or the batch at the next step.

        `texts` then holds what was generated so far, except for beam search, which has no text before it ends.
        """
        self.is_canceled = True
        if self.on_cancel is not None:
            self.on_cancel(self)

    def settle(self) -> None:
        """Set `error` to that of a sequence that failed, if any did.

        If one failed, all ended, or the request was canceled, the request is over: set `texts` and `done`.
        """
        self.error = next((row.error for row in self.rows if row.error is not None), None)
        if self.error or self.is_canceled or all(row.reason is not None for row in self.rows):
            self.texts = [generated_text_of(row) for row in self.rows]
            self.done.set()


@dataclass(eq=False)
class _Member:
    """A sequence of the running batch; `last` is its newest token, the input of the next step."""

    request: EngineRequest
    row: SequenceState
    last: int


@dataclass(eq=False)
class _Beam:
    """A running beam search: its request and its steps. It has its own runner, apart from the running batch."""

    request: EngineRequest
    steps: Generator[BeamStep, None, list[list[Hypothesis]]]


class Engine:
    """Generates texts for many requests at once, in one running batch.

    Args:
        end: The token that ends a text.
        begin: The token after which an encoder-decoder generates; None for a decoder-only model.
        tokenizer: Decodes the texts; needed for stop strings.
        max_rows: The most sequences that run at a time. A beam search counts as `num_beams` sequences.
        max_tokens: The most tokens that all key-value caches can hold. Every sequence of the batch gets the capacity of
            the longest one; a beam search has its own cache.
        max_waiting: The most requests that wait in the queue.
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
    ):
        self.model, self.end, self.begin, self.tokenizer = model, end, begin, tokenizer
        self.max_rows, self.max_tokens, self.max_waiting = max_rows, max_tokens, max_waiting
        self._waiting: deque[EngineRequest] = deque()
        self._members: list[_Member] = []
        self._beams: list[_Beam] = []
        self._runner: StepRunner | None = None
        self._chooser: TokenChooser | None = None
        self._lock = threading.Lock()

    def submit(
        self,
        tokens: Sequence[int],
        config: GenerationConfig | None = None,
        on_token: Callable[[int, int], None] | None = None,
    ) -> EngineRequest:
        """Queue a request to generate from `tokens`, and return it.

        After each new token except END, `on_token` is called with the index of the sample and the token; beam search
        does not call it. Raises ValueError if the model cannot read the tokens, and EngineFullError if the queue is
        full or the request exceeds a limit of the engine.
        """
        request = EngineRequest(list(tokens), config or GenerationConfig(), on_token, on_cancel=self._withdraw)
        check_inputs(self.model, [tokens], self.begin, request.config)
        rows, size = self._cost([request])
        if rows > self.max_rows or size > self.max_tokens:
            raise EngineFullError(
                f"the request needs {rows} rows and {size} tokens: expected at most max_rows={self.max_rows} "
                f"and max_tokens={self.max_tokens}"
            )
        with self._lock:
            if len(self._waiting) >= self.max_waiting:
                raise EngineFullError(
                    f"{len(self._waiting)} requests are waiting: expected fewer than "
                    f"max_waiting={self.max_waiting}; try again later"
                )
            self._waiting.append(request)
        return request

    @property
    def is_idle(self) -> bool:
        """Whether no request waits or runs."""
        return not (self._waiting or self._members or self._beams)

    @property
    def n_rows(self) -> int:
        """The number of running sequences. A beam search counts as `num_beams` sequences."""
        return len(self._members) + sum(beam.request.config.num_beams for beam in self._beams)

    def run(self) -> None:
        """Call `step` until no request waits or runs."""
        while not self.is_idle:
            self.step()

    def step(self) -> None:
        """Remove ended and canceled requests, start waiting ones, then advance each running sequence by one token."""
        with inference(self.model):
            self._leave()
            self._admit()
            self._step_beams()
            if self._members:
                self._step_rows()

    def _cost(self, requests: list[EngineRequest]) -> tuple[int, int]:
        """Return how many batch rows and how many tokens of cache these requests need if they run at the same time."""
        rows = {id(r): max(r.config.num_beams, r.config.num_return_sequences) for r in requests}
        room = {id(r): len(r.tokens) + r.config.max_new_tokens for r in requests}
        beams = {id(r) for r in requests if r.config.num_beams > 1}
        separate = sum(rows[key] * room[key] for key in beams)
        n_together = sum(count for key, count in rows.items() if key not in beams)
        longest = max((size for key, size in room.items() if key not in beams), default=0)
        return sum(rows.values()), separate + n_together * longest

    def _withdraw(self, request: EngineRequest) -> None:
        """Remove a canceled request from the queue, if it still waits there (`EngineRequest.on_cancel`)."""
        with self._lock:
            if request in self._waiting:
                self._waiting.remove(request)
                request.done.set()

    def _admit(self) -> None:
        admitted: list[EngineRequest] = []
        with self._lock:
            running = {id(r): r for r in (*(m.request for m in self._members), *(b.request for b in self._beams))}
            while self._waiting:
                request = self._waiting[0]
                rows, size = self._cost([*running.values(), *admitted, request])
                if rows > self.max_rows or size > self.max_tokens:
                    break
                admitted.append(self._waiting.popleft())
        for request in admitted:
            try:
                self._start(request)
            except Exception as error:
                self._fail(request, error)

    def _start(self, request: EngineRequest) -> None:
        """Read the prompt, generate the first token and join the batch; or, for `num_beams` > 1, add a beam search."""
        config = request.config
        copies = max(config.num_beams, config.num_return_sequences)
        if config.num_beams > 1:
            self._beams.append(_Beam(request, self._search(request)))
            return
        opening = open_batch(self.model, [request.tokens], config, self.begin, copies, joins_batch=True)
        with opening as (runner, given, _, max_new):
            request.rows = rows = sequences_of(
                self.model, [request.tokens], config, self.begin, max_new, tokenizer=self.tokenizer
            )
            scores = runner.step(given.repeat_interleave(copies, 0))
        chosen = self._chooser_of(rows, scores.shape[1]).choose(scores)
        members = [_Member(request, row, token) for row, token in zip(rows, chosen, strict=True)]
        self._tell(members)
        if not request.is_done:
            request.settle()
        if not request.is_done:
            self._join(runner, members)

    def _search(self, request: EngineRequest) -> Generator[BeamStep, None, list[list[Hypothesis]]]:
        """Yield the steps of a request's beam search. The runner is released when the generator ends or is closed."""
        opening = open_batch(self.model, [request.tokens], request.config, self.begin, request.config.num_beams)
        with opening as (runner, given, mask, max_new):
            return (yield from beam_steps(runner, given, mask, request.config, end=self.end, max_new=max_new))

    def _join(self, runner: StepRunner, members: list[_Member]) -> None:
        """Append the members that have not ended, with their rows of `runner`, to the running batch."""
        staying = [index for index, member in enumerate(members) if member.row.reason is None]
        if len(staying) < len(members):
            runner.keep(staying)
            members = [members[index] for index in staying]
        together = [*self._members, *members]
        running = [] if self._runner is None else [self._runner]
        self._runner = self._make_room([*running, runner], together)
        self._members, self._chooser = together, None

    def _step_rows(self) -> None:
        assert self._runner is not None
        members = self._members
        if self._runner.cache.length >= self._runner.cache.capacity:
            self._runner = self._make_room([self._runner], members)
        tokens = torch.tensor([[member.last] for member in members], device=self._runner.device)
        scores = self._runner.step(tokens)
        if self._chooser is None:
            self._chooser = self._chooser_of([member.row for member in members], scores.shape[1])
        for member, token in zip(members, self._chooser.choose(scores), strict=True):
            member.last = token
        self._tell(members)
        self._leave()

    def _make_room(self, runners: list[StepRunner], members: list[_Member]) -> StepRunner:
        """Merge the runners' rows into one runner whose cache can hold the longest text that a member may become.

        Rows that started at different times are padded to one length, and the padding takes up room in the cache. If
        the cache is full before all rows end, `_step_rows` calls this again, which drops padding that no row needs.
        """
        # Each row has read all of its tokens except the last.
        lengths = [len(member.row.given) + len(member.row.written) - 1 for member in members]
        capacity = max(len(member.row.given) + member.row.max_new for member in members)
        return StepRunner.joined(runners, lengths=lengths, capacity=capacity)

    def _step_beams(self) -> None:
        for beam in list(self._beams):
            try:
                next(beam.steps)
            except StopIteration as stop:
                (found,) = stop.value
                beam.request.texts = from_beam(found, self.tokenizer)
                beam.request.done.set()
                self._beams.remove(beam)
            except Exception as error:
                self._fail(beam.request, error)
                self._beams.remove(beam)

    def _tell(self, members: list[_Member]) -> None:
        for member in members:
            if member.request.on_token is None or member.row.reason == "end" or member.row.error is not None:
                continue
            try:
                member.request.on_token(member.row.number, member.last)
            except Exception as error:  # an error of the callback ends its own request only
                self._fail(member.request, error)

    def _leave(self) -> None:
        """Remove ended sequences and those of canceled or failed requests from the batch; close canceled searches."""
        for beam in [beam for beam in self._beams if beam.request.is_canceled]:
            beam.steps.close()
            beam.request.done.set()
            self._beams.remove(beam)
        staying = [
            index
            for index, member in enumerate(self._members)
            if member.row.reason is None and not (member.request.is_canceled or member.request.is_done)
        ]
        if len(staying) == len(self._members):
            return
        before, self._members = self._members, [self._members[index] for index in staying]
        for member in before:
            if not member.request.is_done:
                member.request.settle()
        self._chooser = None
        if not staying:
            self._runner = None
        elif self._runner is not None:
            self._runner.keep(staying)

    def _fail(self, request: EngineRequest, error: Exception) -> None:
        request.error = error
        request.done.set()

    def _chooser_of(self, rows: list[SequenceState], vocab_size: int) -> TokenChooser:
        device = next(self.model.parameters()).device
        kernels = choose_kernels(self.model)
        return TokenChooser(rows, end=self.end, vocab_size=vocab_size, device=device, kernels=kernels)
