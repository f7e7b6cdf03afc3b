"""The batching engine: requests join and leave a running batch at every step.

One thread calls `step` again and again; any thread may `submit` and `cancel`. A request's text is the one it would have
had alone. Memory is bounded: requests wait while the batch is full, and are refused while too many wait.
"""

import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

import torch

from glassformer.decoding.beam import BeamStep, Hypothesis, beam_steps
from glassformer.decoding.generate import Written, as_written, check_inputs, from_beam, open_writer, rows_of
from glassformer.decoding.generation_config import GenerationConfig
from glassformer.decoding.step_loop import Chooser, Row
from glassformer.decoding.text_stream import Decodes
from glassformer.runtime.step_runner import TextModel, Writer, writing


class EngineFullError(RuntimeError):
    """Too many requests wait already, or this one could never fit."""


@dataclass(eq=False)
class Request:
    """What was asked for, and how far it is. Its owner reads `texts` once `is_done`."""

    tokens: list[int]
    config: GenerationConfig
    on_token: Callable[[int, int], None] | None = None
    """Told of each token as it is written: the number of the sample, and the token. Not for beams."""
    rows: list[Row] = field(default_factory=list)
    texts: list[Written] = field(default_factory=list)
    error: Exception | None = None
    is_cancelled: bool = False
    done: threading.Event = field(default_factory=threading.Event)
    on_cancel: Callable[["Request"], None] | None = None
    """Called by `cancel`: the engine takes a waiting request out of its queue."""

    @property
    def is_done(self) -> bool:
        """Whether it is written, has failed, or was cancelled."""
        return self.done.is_set()

    def cancel(self) -> None:
        """Stop it: it leaves the queue at once, or the batch before the next step, with what it has written."""
        self.is_cancelled = True
        if self.on_cancel is not None:
            self.on_cancel(self)

    def settle(self) -> None:
        """Hand over the texts, if the last row has ended or nobody wants more."""
        self.error = next((row.error for row in self.rows if row.error is not None), None)
        if self.error or self.is_cancelled or all(row.reason is not None for row in self.rows):
            self.texts = [as_written(row) for row in self.rows]
            self.done.set()


@dataclass(eq=False)
class _Member:
    """A row of the running batch."""

    request: Request
    row: Row
    last: int


@dataclass(eq=False)
class _Beam:
    """A search that steps beside the running batch."""

    request: Request
    steps: Generator[BeamStep, None, list[list[Hypothesis]]]


class Engine:
    """Writes for many at once.

    `max_rows` texts are written at a time, a beam counting for its width. `max_tokens` bounds the cache: all rows have
    as much room as the longest text may need, and a beam has its own. `max_waiting` requests may wait.
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
        self._waiting: deque[Request] = deque()
        self._members: list[_Member] = []
        self._beams: list[_Beam] = []
        self._writer: Writer | None = None
        self._chooser: Chooser | None = None
        self._lock = threading.Lock()

    def submit(
        self,
        tokens: Sequence[int],
        config: GenerationConfig | None = None,
        on_token: Callable[[int, int], None] | None = None,
    ) -> Request:
        """Ask for a text. It is refused with an error where it is wrong, or where there is no room."""
        request = Request(list(tokens), config or GenerationConfig(), on_token, on_cancel=self._withdraw)
        check_inputs(self.model, [tokens], self.begin)
        rows, size = self._cost([request])
        if rows > self.max_rows or size > self.max_tokens:
            raise EngineFullError(
                f"the request needs {rows} rows and {size} tokens: expected at most max_rows={self.max_rows} "
                f"and max_tokens={self.max_tokens}"
            )
        with self._lock:
            if len(self._waiting) >= self.max_waiting:
                raise EngineFullError(f"{len(self._waiting)} requests wait already: expected to be asked again later")
            self._waiting.append(request)
        return request

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do."""
        return not (self._waiting or self._members or self._beams)

    @property
    def n_rows(self) -> int:
        """How many texts are being written, each beam counting for its width."""
        return len(self._members) + sum(beam.request.config.num_beams for beam in self._beams)

    def run(self) -> None:
        """Step until there is nothing to do."""
        while not self.is_idle:
            self.step()

    def step(self) -> None:
        """Let requests leave and join, then write one token of each text."""
        with writing(self.model):
            self._leave()
            self._admit()
            self._step_beams()
            if self._members:
                self._step_rows()

    def _cost(self, requests: list[Request]) -> tuple[int, int]:
        """The rows these need together, and the tokens that there must be room for."""
        rows = {id(r): max(r.config.num_beams, r.config.num_return_sequences) for r in requests}
        room = {id(r): len(r.tokens) + r.config.max_new_tokens for r in requests}
        beams = {id(r) for r in requests if r.config.num_beams > 1}
        apart = sum(rows[key] * room[key] for key in beams)
        n_together = sum(count for key, count in rows.items() if key not in beams)
        longest = max((size for key, size in room.items() if key not in beams), default=0)
        return sum(rows.values()), apart + n_together * longest

    def _withdraw(self, request: Request) -> None:
        """Take a request that still waits out of the queue, so that another one finds room there."""
        with self._lock:
            if request in self._waiting:
                self._waiting.remove(request)
                request.done.set()

    def _admit(self) -> None:
        admitted: list[Request] = []
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

    def _start(self, request: Request) -> None:
        """Read what the request gives, write its first token, and let it join the others."""
        config = request.config
        copies = max(config.num_beams, config.num_return_sequences)
        writer, given, mask, max_new = open_writer(
            self.model, [request.tokens], config, self.begin, copies, may_record=config.num_beams > 1
        )
        if config.num_beams > 1:
            steps = beam_steps(writer, given, mask, config, end=self.end, max_new=max_new)
            self._beams.append(_Beam(request, steps))
            return
        request.rows = rows = rows_of(
            self.model, [request.tokens], config, self.begin, max_new, tokenizer=self.tokenizer
        )
        scores = writer.step(given.repeat_interleave(copies, 0))
        chosen = self._chooser_of(rows, scores.shape[1]).choose(scores)
        members = [_Member(request, row, token) for row, token in zip(rows, chosen, strict=True)]
        self._tell(members)
        if not request.is_done:
            request.settle()
        if not request.is_done:
            self._join(writer, members)

    def _join(self, writer: Writer, members: list[_Member]) -> None:
        """Put the rows that go on behind those that run."""
        staying = [index for index, member in enumerate(members) if member.row.reason is None]
        if len(staying) < len(members):
            writer.keep(staying)
            members = [members[index] for index in staying]
        together = [*self._members, *members]
        running = [] if self._writer is None else [self._writer]
        self._writer = self._make_room([*running, writer], together)
        self._members, self._chooser = together, None

    def _step_rows(self) -> None:
        assert self._writer is not None
        members = self._members
        if self._writer.cache.length >= self._writer.cache.capacity:
            self._writer = self._make_room([self._writer], members)
        tokens = torch.tensor([[member.last] for member in members], device=self._writer.device)
        scores = self._writer.step(tokens)
        if self._chooser is None:
            self._chooser = self._chooser_of([member.row for member in members], scores.shape[1])
        for member, token in zip(members, self._chooser.choose(scores), strict=True):
            member.last = token
        self._tell(members)
        self._leave()

    def _make_room(self, writers: list[Writer], members: list[_Member]) -> Writer:
        """One writer for all of these rows, with room for the longest text that one of them may become.

        Rows of unlike age may fill it before they end; then this is done again, without what they no longer need.
        """
        # Every row has read all of its tokens but the last.
        lengths = [len(member.row.given) + len(member.row.written) - 1 for member in members]
        capacity = max(len(member.row.given) + member.row.max_new for member in members)
        return Writer.joined(writers, lengths=lengths, capacity=capacity)

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
            except Exception as error:  # the listener's own fault, and nobody else's
                self._fail(member.request, error)

    def _leave(self) -> None:
        """Rows that have ended, and those of cancelled requests, leave the batch."""
        for beam in [beam for beam in self._beams if beam.request.is_cancelled]:
            beam.steps.close()
            beam.request.done.set()
            self._beams.remove(beam)
        staying = [
            index
            for index, member in enumerate(self._members)
            if member.row.reason is None and not (member.request.is_cancelled or member.request.is_done)
        ]
        if len(staying) == len(self._members):
            return
        before, self._members = self._members, [self._members[index] for index in staying]
        for member in before:
            if not member.request.is_done:
                member.request.settle()
        self._chooser = None
        if not staying:
            self._writer = None
        elif self._writer is not None:
            self._writer.keep(staying)

    def _fail(self, request: Request, error: Exception) -> None:
        request.error = error
        request.done.set()

    def _chooser_of(self, rows: list[Row], vocab_size: int) -> Chooser:
        device = next(self.model.parameters()).device
        return Chooser(rows, end=self.end, vocab_size=vocab_size, device=device)
