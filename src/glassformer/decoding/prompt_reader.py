"""Read the prompts of the engine's requests into rows of the cache pool: several together, long ones in parts.

A step reads a limited number of tokens, so that requests can join and leave. After a part of a long prompt the shortest
prompts are read, then again the oldest one: a short prompt waits for one part, and a long one gets every second step.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from glassformer.decoding.engine_request import EngineRequest
from glassformer.decoding.prompt_lookup import PromptLookup
from glassformer.decoding.running_batch import Member, RunningBatch
from glassformer.models import DecoderModel
from glassformer.runtime.async_readback import upload
from glassformer.runtime.cache_pool import PoolRow

MAX_PADDING = 0.25
"""Prompts are read together while at most this share of the tokens is padding."""
GPU_READ_AT_ONCE = 16384
"""The most prompt tokens that a GPU reads at once while no request runs: it needs more tokens to be busy.

A CPU does not: SmolLM2-135M reads 2,000 tokens on one Xeon core in 4.8 s, in parts of 256 tokens and in one.
"""
GPU_PADDED = 8192
"""Prompts of any lengths are read together on a GPU up to this many tokens with padding.

To launch the kernels for several groups takes longer than to read the padding.
"""


@dataclass(eq=False)
class Reading:
    """A request whose prompt is being read into the first of its rows."""

    request: EngineRequest
    places: list[PoolRow]

    @property
    def unread(self) -> list[int]:
        """The tokens of the prompt that have not been read."""
        return self.request.tokens[self.places[0].length :]

    @property
    def n_unread(self) -> int:
        """The number of these tokens."""
        return len(self.request.tokens) - self.places[0].length


class PromptReader:
    """The requests whose prompts are being read, as `readings`. When a prompt is complete, it joins the batch.

    Args:
        begin: The token after which an encoder-decoder generates; None for a decoder-only model.
        read_tokens: The most tokens that `read` reads, but at least one source of an encoder-decoder, which cannot be
            read in parts. While no request runs, a GPU reads up to GPU_READ_AT_ONCE.
    """

    def __init__(self, batch: RunningBatch, *, begin: int | None, read_tokens: int):
        self.batch, self.begin, self.read_tokens = batch, begin, read_tokens
        self.readings: list[Reading] = []
        is_cuda = batch.runner.pool.device.type == "cuda"
        self._read_at_once = max(read_tokens, GPU_READ_AT_ONCE) if is_cuda else read_tokens
        self._any_padding = GPU_PADDED if is_cuda else 0
        """Up to this many tokens, prompts are read together whatever their lengths."""
        self._shortest_first = False
        """Whether the next step reads the shortest prompts first instead of the oldest ones."""

    def read(self) -> None:
        """Read prompts, or parts of them, within the limit of one step."""
        limit = self.read_tokens if self.batch.members else self._read_at_once
        left, is_long = limit, False
        while self.readings:
            group = self._next_group(left)
            if not group:
                if left < limit:
                    break
                group, is_long = self._in_turn()[:1], True  # longer than the limit: read a part of it
            texts = [reading.unread for reading in group]
            if self.begin is None:
                texts = [text[:limit] for text in texts]
            left -= len(texts) * max(map(len, texts))
            try:
                self._read(group, texts)
            except Exception as error:
                for reading in group:
                    reading.request.fail(error)
                    self._drop(reading)
                self.batch.leave()
        self._shortest_first = is_long and not self._shortest_first

    def leave(self) -> None:
        """Remove canceled requests and free their rows."""
        for reading in [reading for reading in self.readings if reading.request.is_canceled]:
            reading.request.settle()
            self._drop(reading)

    def _drop(self, reading: Reading) -> None:
        if reading in self.readings:
            self.readings.remove(reading)
            for place in reading.places:
                self.batch.runner.pool.free(place)

    def _in_turn(self) -> list[Reading]:
        """Return the readings in the order in which this step reads them."""
        return sorted(self.readings, key=lambda reading: reading.n_unread) if self._shortest_first else self.readings

    def _next_group(self, left: int) -> list[Reading]:
        """Return the first prompt and others of similar length to read with it, of at most `left` tokens together."""
        order = self._in_turn()
        first, group = order[0], list[Reading]()
        sizes = list[tuple[int, int]]()
        for reading in order:
            # The tokens to read, and all tokens of the prompt: the row may hold some, and the new ones attend to them.
            more = [*sizes, (reading.n_unread, len(reading.request.tokens))]
            is_dense = all(map(self._is_dense, zip(*more, strict=True)))
            if len(more) * max(unread for unread, _ in more) <= left and is_dense:
                group.append(reading)
                sizes = more
            elif reading is first:
                return []
        return group

    def _is_dense(self, lengths: Sequence[int]) -> bool:
        """Return whether texts of these lengths, padded to the longest, have little padding or are few tokens."""
        padded = len(lengths) * max(lengths)
        return padded <= self._any_padding or sum(lengths) >= (1 - MAX_PADDING) * padded

    def _read(self, group: list[Reading], texts: list[list[int]]) -> None:
        """Read these tokens of some prompts. Those that are then complete join the batch."""
        runner = self.batch.runner
        places = [reading.places[0] for reading in group]
        if self.begin is None:
            scores = runner.read(places, texts)
            complete = [number for number, reading in enumerate(group) if not reading.unread]
        else:
            scores = runner.read_sources(places, texts, self.begin)
            complete = list(range(len(group)))
        members, numbers = list[Member](), list[int]()
        for number in complete:
            reading = group[number]
            first = reading.places[0]
            for place, sequence in zip(reading.places, reading.request.rows, strict=True):
                if place is not first:
                    runner.pool.copy_text(first, place, first.length)
                members.append(Member(reading.request, sequence, place, self._lookup_for(reading.request)))
                numbers.append(number)
        for number in complete:
            self.readings.remove(group[number])
        if members:
            is_whole = numbers == list(range(len(scores)))
            self.batch.join(members, scores if is_whole else scores[upload(numbers, scores.device)])

    def _lookup_for(self, request: EngineRequest) -> PromptLookup | None:
        """Return the index of a request's prompt, or source, if it asks for proposed tokens."""
        if not request.config.prompt_lookup_num_tokens:
            return None
        model = self.batch.runner.model
        shares_ids = isinstance(model, DecoderModel) or model.config.source_vocab == model.config.vocab_size
        return PromptLookup(request.tokens if shares_ids else ())
