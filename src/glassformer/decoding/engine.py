"""Continuous batching: requests join and leave a running batch at every step. This is the core of a server.

One thread calls `step` repeatedly; any thread may call `submit` and `cancel`. Up to rounding, a request's result does
not depend on the other requests. A request passes through these stages:

1. It waits. `submit` refuses a request that could never fit, and any request while too many wait.
2. It is admitted, in the order of arrival, as soon as the pool (`runtime/cache_pool.py`) has a row for each of its
   sequences. A row that still holds the beginning of its prompt is reused (`prefix_reuse.py`).
3. Its prompt is read. Prompts of similar length are read together. While other requests run, a step reads at most
   `read_tokens` tokens, so a long prompt is read in parts and the running requests go on in between.
4. It runs: all running sequences take each step together, each at its own position. Nothing is padded, and no cache
   is copied when another request joins. On a GPU the steps are recorded, and the next step is launched before the
   tokens of this one are read.
5. It leaves. Its row is kept, in case a later prompt begins with its text, until the room is needed.

A beam search has its own runner and cache and takes its steps between those of the batch. Memory is bounded: the pool
has room for `max_tokens` tokens and is allocated once; the caches of beam searches together hold at most as much again.
"""

import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from glassformer.decoding.beam import BeamStep, Hypothesis, beam_steps
from glassformer.decoding.engine_request import EngineFullError, EngineRequest
from glassformer.decoding.generate import check_inputs, from_beam, open_batch, sequences_of
from glassformer.decoding.generation_config import GenerationConfig
from glassformer.decoding.prefix_reuse import take_rows
from glassformer.decoding.rules import Rules
from glassformer.decoding.step_loop import SequenceState, TokenChooser
from glassformer.decoding.text_stream import Decodes
from glassformer.models import DecoderModel
from glassformer.runtime.cache_pool import PoolRow
from glassformer.runtime.choose_runner import open_pool, should_record_pool
from glassformer.runtime.pool_runner import PoolRunner
from glassformer.runtime.step_runner import TextModel, inference

READ_AT_ONCE = 4096
"""The most prompt tokens that a step reads while no request runs."""
MAX_PADDING = 0.25
"""Prompts are read together while at most this share of the tokens is padding."""


@dataclass(eq=False)
class _Member:
    """A sequence of the running batch; `last` is its newest token, the input of the next step."""

    request: EngineRequest
    sequence: SequenceState
    place: PoolRow
    last: int


@dataclass(eq=False)
class _Reading:
    """A request whose prompt is being read into the first of its rows."""

    request: EngineRequest
    places: list[PoolRow]

    @property
    def unread(self) -> list[int]:
        """The tokens of the prompt that have not been read."""
        return self.request.tokens[self.places[0].length :]


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
        read_tokens: The most prompt tokens that a step reads while requests run, but at least one source.
        min_reuse: The least number of tokens that a prompt must share with a text in the pool to reuse them. 0 turns
            reuse off.
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
        read_tokens: int = 256,
        min_reuse: int = 16,
    ):
        self.model, self.end, self.begin, self.tokenizer = model, end, begin, tokenizer
        self.max_rows, self.max_tokens, self.max_waiting = max_rows, max_tokens, max_waiting
        self.read_tokens = read_tokens
        self.min_reuse = min_reuse if isinstance(model, DecoderModel) else 0
        self._waiting: deque[EngineRequest] = deque()
        self._reading: list[_Reading] = []
        self._members: list[_Member] = []
        self._beams: list[_Beam] = []
        self._runner: PoolRunner | None = None
        self._ahead: tuple[list[_Member], Tensor] | None = None
        """The members of a step that was launched early, and their logits."""
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
        self._check(request)
        rows = request.n_rows
        size = rows * (len(request.tokens) + request.config.max_new_tokens)
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
        return not (self._waiting or self._reading or self._members or self._beams)

    @property
    def n_rows(self) -> int:
        """The number of sequences that run or whose prompt is being read. A beam search counts as `num_beams`."""
        reading = sum(len(reading.places) for reading in self._reading)
        return len(self._members) + reading + sum(beam.request.n_rows for beam in self._beams)

    def run(self) -> None:
        """Call `step` until no request waits or runs."""
        with inference(self.model):
            while not self.is_idle:
                self._step()

    def step(self) -> None:
        """Remove ended and canceled requests, start waiting ones, then advance each running sequence by one token."""
        with inference(self.model):
            self._step()

    def _step(self) -> None:
        self._leave()
        self._admit()
        self._read_prompts()
        self._step_beams()
        if self._members:
            self._step_members()

    def _check(self, request: EngineRequest) -> None:
        """Raise ValueError for tokens that the model cannot read: they would fail together with other requests."""
        check_inputs(self.model, [request.tokens], self.begin)
        config = self.model.config
        size = config.vocab_size if isinstance(self.model, DecoderModel) else config.source_vocab
        for token in request.tokens:
            if not 0 <= token < size:
                raise ValueError(f"the input holds token {token}: expected 0 to {size - 1}")

    def _withdraw(self, request: EngineRequest) -> None:
        """Remove a canceled request from the queue, if it still waits there (`EngineRequest.on_cancel`)."""
        with self._lock:
            if request in self._waiting:
                self._waiting.remove(request)
                request.done.set()

    # Admission

    def _admit(self) -> None:
        """Start waiting requests in their order, as long as there is room."""
        while True:
            with self._lock:
                if not self._waiting or not self._make_room(self._waiting[0]):
                    return
                request = self._waiting.popleft()
            try:
                self._start(request)
            except Exception as error:
                request.fail(error)

    def _make_room(self, request: EngineRequest) -> bool:
        """Return whether there is room for a request; make some in the pool, for requests without a beam."""
        if self.n_rows + request.n_rows > self.max_rows:
            return False
        if request.config.num_beams > 1:
            beams = [request, *(beam.request for beam in self._beams)]
            return sum(beam.n_rows * beam.size_for(self.model) for beam in beams) <= self.max_tokens
        users = {id(user): user for user in (*(m.request for m in self._members), *(r.request for r in self._reading))}
        needs = [user.size_for(self.model) for user in users.values()]
        return self._open_runner().pool.fit(request.n_rows, request.size_for(self.model), needs)

    def _open_runner(self) -> PoolRunner:
        if self._runner is None:
            self._runner = open_pool(self.model, max_rows=self.max_rows, max_tokens=self.max_tokens)
        return self._runner

    def _start(self, request: EngineRequest) -> None:
        """Take rows of the pool for a request and prepare to read its prompt; or start a beam search."""
        config = request.config
        if config.num_beams > 1:
            self._beams.append(_Beam(request, self._search(request)))
            return
        Rules([config], end=self.end, vocab_size=self.model.config.vocab_size)  # raises if it names unknown tokens
        max_new = [request.max_new_for(self.model)]
        request.rows = sequences_of(self.model, [request.tokens], config, self.begin, max_new, tokenizer=self.tokenizer)
        runner = self._open_runner()
        runner.is_recorded = should_record_pool(self.model)
        places, request.n_reused = take_rows(runner.pool, request.tokens, request.n_rows, self.min_reuse)
        self._reading.append(_Reading(request, places))

    def _search(self, request: EngineRequest) -> Generator[BeamStep, None, list[list[Hypothesis]]]:
        """Yield the steps of a request's beam search. The runner is released when the generator ends or is closed."""
        opening = open_batch(self.model, [request.tokens], request.config, self.begin, request.config.num_beams)
        with opening as (runner, given, mask, max_new):
            return (yield from beam_steps(runner, given, mask, request.config, end=self.end, max_new=max_new))

    # Prompts

    def _read_prompts(self) -> None:
        """Read prompts, or parts of them, within the limit of one step. Those that are complete join the batch."""
        limit = self.read_tokens if self._members else max(self.read_tokens, READ_AT_ONCE)
        left = limit
        while self._reading:
            group = self._next_group(left)
            if not group:
                if left < limit:
                    return
                group = self._reading[:1]  # longer than the limit: read a part of it
            texts = [reading.unread for reading in group]
            if isinstance(self.model, DecoderModel):
                texts = [text[:limit] for text in texts]
            left -= len(texts) * max(map(len, texts))
            try:
                self._read(group, texts)
            except Exception as error:
                for reading in group:
                    reading.request.fail(error)
                    self._drop(reading)

    def _next_group(self, left: int) -> list[_Reading]:
        """Return the first prompt, and others of similar length that can be read with it, of at most `left` tokens."""
        first, group = self._reading[0], list[_Reading]()
        n_real = longest = 0
        for reading in self._reading:
            # Prompts whose beginning is stored are read alone, because they attend to rows of the pool.
            if reading is not first and (reading.places[0].length or first.places[0].length):
                continue
            length = len(reading.unread)
            padded = (len(group) + 1) * max(longest, length)
            if padded <= left and n_real + length >= (1 - MAX_PADDING) * padded:
                group.append(reading)
                n_real, longest = n_real + length, max(longest, length)
            elif reading is first:
                return []
        return group

    def _read(self, group: list[_Reading], texts: list[list[int]]) -> None:
        """Read these tokens of some prompts, and generate the first token after those that are then complete."""
        runner = self._open_runner()
        places = [reading.places[0] for reading in group]
        if self.begin is None:
            scores = runner.read(places, texts)
            is_complete = [not reading.unread for reading in group]
        else:
            scores = runner.read_sources(places, texts, self.begin)
            is_complete = [True] * len(group)
        complete = [index for index, done in enumerate(is_complete) if done]
        if not complete:
            return
        members, numbers = list[_Member](), list[int]()
        for index in complete:
            reading = group[index]
            self._reading.remove(reading)
            for place, sequence in zip(reading.places, reading.request.rows, strict=True):
                if place is not reading.places[0]:
                    runner.pool.copy_text(reading.places[0], place, reading.places[0].length)
                place.state = "running"
                members.append(_Member(reading.request, sequence, place, 0))
                numbers.append(index)
        self._members += members
        self._chooser = None
        chooser = self._chooser_of(members, scores.shape[1])
        chooser.start(scores[torch.tensor(numbers, device=scores.device)])
        self._add_tokens(members, chooser.finish())

    def _drop(self, reading: _Reading) -> None:
        """Remove a request whose prompt is not complete, and free its rows."""
        if reading in self._reading:
            self._reading.remove(reading)
        for place in reading.places:
            self._open_runner().pool.free(place)
        self._members = [member for member in self._members if member.request is not reading.request]

    # Steps

    def _step_members(self) -> None:
        """Advance the running sequences by one token. Those that joined after an early launch wait for the next."""
        runner = self._open_runner()
        if self._ahead is None:
            members, scores = self._launch()
        else:
            members, scores = self._ahead
            self._ahead = None
        if self._chooser is None or [member.sequence for member in members] != self._chooser.rows:
            self._chooser = self._chooser_of(members, scores.shape[1])
        chooser = self._chooser
        chooser.start(scores)
        goes_on = any(len(member.sequence.written) + 1 < member.sequence.max_new for member in members)
        is_whole = len(members) == len(self._members)
        if runner.can_run_ahead and goes_on and is_whole and not chooser.needs_tokens:
            places = {id(member): place for place, member in enumerate(members)}
            order = [places[id(member)] for member in self._in_order()]
            tokens = chooser.tokens[torch.tensor(order, device=scores.device)]
            self._ahead = list(self._members), runner.step(tokens[:, None])
        self._add_tokens(members, chooser.finish())
        self._leave()

    def _launch(self) -> tuple[list[_Member], Tensor]:
        """Take a step of all members, in the order of their rows; return them and their logits."""
        runner, members = self._open_runner(), list(self._in_order())
        tokens = torch.tensor([[member.last] for member in members], device=runner.pool.device)
        return members, runner.step(tokens)

    def _in_order(self) -> list[_Member]:
        """Move the rows of the members to the beginning of the pool, and return the members in the order of rows."""
        self._open_runner().pool.compact()
        self._members.sort(key=lambda member: member.place.index)
        return self._members

    def _add_tokens(self, members: list[_Member], tokens: list[int]) -> None:
        """Note the tokens that members have chosen, and pass them on."""
        for member, token in zip(members, tokens, strict=True):
            member.last = token
            if member.sequence.reason != "end" and member.sequence.error is None:
                member.place.tokens.append(token)
                self._tell(member)
        self._leave()

    def _tell(self, member: _Member) -> None:
        if member.request.on_token is None or member.request.is_done:
            return
        try:
            member.request.on_token(member.sequence.number, member.last)
        except Exception as error:  # an error of the callback ends its own request only
            member.request.fail(error)

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
                beam.request.fail(error)
                self._beams.remove(beam)

    def _leave(self) -> None:
        """Remove ended sequences and those of canceled or failed requests, and close canceled searches."""
        for beam in [beam for beam in self._beams if beam.request.is_canceled]:
            beam.steps.close()
            beam.request.done.set()
            self._beams.remove(beam)
        for reading in [reading for reading in self._reading if reading.request.is_canceled]:
            reading.request.settle()
            self._drop(reading)
        leaving = [
            member
            for member in self._members
            if member.sequence.reason is not None or member.request.is_canceled or member.request.is_done
        ]
        if not leaving:
            return
        self._members = [member for member in self._members if member not in leaving]
        if self._ahead is not None:
            members, scores = self._ahead
            staying = [index for index, member in enumerate(members) if member not in leaving]
            kept = [members[index] for index in staying]
            self._ahead = (kept, scores[torch.tensor(staying, device=scores.device)]) if kept else None
        for member in leaving:
            if not member.request.is_done:
                member.request.settle()
            self._release(member)
        self._chooser = None

    def _release(self, member: _Member) -> None:
        """Give back the row of a member, which keeps its text if that may be reused."""
        pool = self._open_runner().pool
        if member.sequence.error is not None:
            pool.clear(member.place)
        if self.min_reuse and member.sequence.error is None:
            pool.keep(member.place)
        else:
            pool.free(member.place)

    def _chooser_of(self, members: list[_Member], vocab_size: int) -> TokenChooser:
        pool = self._open_runner().pool
        sequences = [member.sequence for member in members]
        return TokenChooser(sequences, end=self.end, vocab_size=vocab_size, device=pool.device, kernels=pool.kernels)
