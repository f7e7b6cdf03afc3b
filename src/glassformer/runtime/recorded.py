"""Steps that are recorded once and played for every token: most of a small step is waiting for Python.

On a GPU a CUDA graph launches all kernels of a step at once; on either kind of device a step can be compiled too. Both
want fixed shapes, and a graph fixed addresses, so a recording owns its cache, has room for a few more rows and tokens
than were asked for, and is lent to one writer at a time. The model's code is the same; what it computes differs by
rounding alone, as longer sums do.

There are three: the step that gives scores; the greedy step, which chooses by itself and feeds what it chose to the
next one, so that many can follow each other unseen; and, of an encoder-decoder, the opening: the source is read and the
first step is made. Others may keep more with a recording, as `recorded_beam.py` does.
"""

import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from glassformer.kernels.choice_kernels import can_choose, choose_best
from glassformer.models import EncoderDecoderModel
from glassformer.nn.attend import reads_room
from glassformer.runtime.compiled import Compiled, options_for
from glassformer.runtime.cuda_graphs import Graph
from glassformer.runtime.fixed_cache import FixedCache
from glassformer.runtime.step_runner import Feeder, TextModel, Writer, modules_of

ROW_STEPS, TOKEN_STEP = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128), 32
MAX_FED = 4
"""Steps that are asked for at once: so many, and as many again, may be made in vain where a text ends."""
FEW_TOKENS = 64
"""To read so many takes a CPU as long by Python as by products."""
MAX_RECORDINGS, MAX_BYTES = 16, 2 << 30
"""Kept for later, at most; the one that was not used for longest is forgotten first."""
MAX_OTHERS = 4
"""What is kept with a recording, likewise."""

Kept = TypeVar("Kept")


class Shape(NamedTuple):
    """What a recording is made for."""

    rows: int
    capacity: int
    memories: int = 0
    memory_length: int = 0


class Recording:
    """The steps of a model for one shape, with the places they read from and write to."""

    def __init__(self, model: TextModel, shape: Shape, steps: "Steps"):
        parameter = next(model.parameters())
        self.shape = shape
        self.addresses = _addresses(model)
        self.cache = FixedCache(
            n_layers=model.config.n_decoder_layers,
            batch_size=shape.rows,
            capacity=shape.capacity,
            n_kv_heads=model.config.kv_heads,
            head_dim=model.config.head_size,
            memory_length=shape.memory_length,
            memory_rows=shape.memories or None,
            dtype=steps.kept_as or parameter.dtype,
            device=parameter.device,
        )
        self.sees_stale = reads_room(model, self.cache.keys[0])
        """Whether a step reads what was left in the cache by others, too."""
        device = parameter.device
        self.tokens = torch.zeros(shape.rows, 1, dtype=torch.long, device=device)
        sizes = shape.memories, shape.memory_length
        self.source = torch.zeros(sizes, dtype=torch.long, device=device) if shape.memories else None
        self.memory = parameter.new_zeros(*sizes, model.config.d_model) if shape.memories else None
        self.memory_mask = torch.zeros(sizes, dtype=torch.bool, device=device) if shape.memories else None
        self.bias = torch.zeros(model.config.vocab_size, device=device)
        self.most = MAX_FED
        self._told = torch.zeros(MAX_FED, 2, shape.rows, device=device)
        self._slot = torch.zeros(1, dtype=torch.long, device=device)
        state = self.tokens, self.cache, self.memory, self.memory_mask
        self.score = steps.scorer(*state)
        """One step from `tokens`, as it is: for what others record."""
        self._others: dict[Hashable, Any] = {}
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None  # one, for one plays at a time
        self._step = self.record(self.score)
        chosen = self.tokens, self.bias, self._slot, self._told
        self._greedy_step = self.record(partial(steps.choose, self.score, *chosen), self._slot)
        self._opening = self.record(steps.opener(*state, self.source))

    def record(self, compute: Callable[[], Tensor], *places: Tensor) -> Callable[[], Tensor]:
        """On a GPU a graph of what reads and writes here and in some `places`; elsewhere the computation itself."""
        if self._pool is None:
            return compute
        # Of its parts alone: a recording that holds itself would keep its memory until somebody cleans up.
        return Graph(compute, self.cache, (self.tokens, *places), self._pool)

    def keep(self, key: Hashable, make: Callable[[], Kept]) -> Kept:
        """What somebody else plays here, made once; a few of them stay, by their keys."""
        kept: Kept = self._others.pop(key) if key in self._others else make()
        self._others[key] = kept
        while len(self._others) > MAX_OTHERS:
            self._others.pop(next(iter(self._others)))
        return kept

    @property
    def nbytes(self) -> int:
        """Memory that its cache holds."""
        return self.cache.nbytes

    def remember(self, memory: Tensor, mask: Tensor | None) -> None:
        """Put a memory where the step reads it; what it leaves free is padding."""
        assert self.memory is not None
        rows, length = memory.shape[:2]
        self.memory.zero_()[:rows, :length] = memory
        self._note_mask(rows, length, mask)

    def open(self, source: Tensor, mask: Tensor | None) -> Tensor:
        """Read a source and make the first step from `tokens`; its scores (N, V), good until the next one."""
        assert self.source is not None
        rows, length = source.shape
        self.source.zero_()[:rows, :length] = source
        self._note_mask(rows, length, mask)
        scores = self._opening()
        self.cache.note_opened()
        return scores

    def _note_mask(self, rows: int, length: int, mask: Tensor | None) -> None:
        assert self.memory_mask is not None
        self.memory_mask.fill_(False)[:rows, :length] = True if mask is None else mask

    def play(self) -> Tensor:
        """One step from `tokens`; the scores of what follows (N, V), good until the next one."""
        self.cache.check_room(1)
        scores = self._step()
        self.cache.count()
        return scores

    def feed(self, steps: int) -> Tensor:
        """As a `Feeder` does; from `tokens`."""
        self.cache.check_room(steps)
        self._slot.zero_()
        for _ in range(steps):
            self._greedy_step()
            self.cache.count()
        return self._told[:steps]


class Steps:
    """What is recorded, as functions of the places they read and write. With `compile` they are compiled first."""

    def __init__(self, model: TextModel, *, compile: bool, kept_as: torch.dtype | None = None):
        self._model = weakref.ref(model)
        self.kept_as = kept_as
        self._options = options_for(next(model.parameters()).device) if compile else None

    @property
    def are_compiled(self) -> bool:
        """Whether they are compiled first."""
        return self._options is not None

    def scorer(
        self, tokens: Tensor, cache: FixedCache, memory: Tensor | None, mask: Tensor | None
    ) -> Callable[[], Tensor]:
        """One step from these places; the scores of what follows."""
        score = partial(self._score, tokens, cache, memory, mask)
        return score if self._options is None else Compiled(score, self._options)

    def _score(self, tokens: Tensor, cache: FixedCache, memory: Tensor | None, mask: Tensor | None) -> Tensor:
        model = self._model()
        assert model is not None
        return Writer(model, cache, memory, mask).step(tokens)

    def choose(self, score: Callable[[], Tensor], tokens: Tensor, bias: Tensor, slot: Tensor, told: Tensor) -> Tensor:
        """A greedy step: what has the best score is told, and is what the next step reads."""
        scores = score()
        if can_choose(scores):
            choose_best(scores, bias, tokens, slot, told)
        else:
            best, chosen = (scores + bias).max(-1)
            tokens.copy_(chosen[:, None])
            told.index_copy_(0, slot, torch.stack([best.to(told), chosen.to(told)])[None])
        slot.add_(1)
        return tokens

    def opener(
        self, tokens: Tensor, cache: FixedCache, memory: Tensor | None, mask: Tensor | None, source: Tensor | None
    ) -> Callable[[], Tensor]:
        """Read the source, and make the first step."""
        plain = partial(self._open, tokens, cache, memory, mask, source)
        if self._options is None:
            return plain
        compiled = Compiled(plain, self._options)

        def open_compiled() -> Tensor:
            if not compiled.is_made:
                plain()  # what a model keeps from its first time on is not made in what is compiled
            return compiled()

        return open_compiled

    def _open(
        self, tokens: Tensor, cache: FixedCache, memory: Tensor | None, mask: Tensor | None, source: Tensor | None
    ) -> Tensor:
        model = self._model()
        assert isinstance(model, EncoderDecoderModel)
        assert memory is not None
        assert source is not None
        memory.copy_(EncoderDecoderModel.encode(model, source, mask))
        cache.restart()
        scores = self._score(tokens, cache, memory, mask)
        cache.fix()
        return scores


class Recordings:
    """The recordings of one model. With `compile` its steps are compiled first, for each shape."""

    def __init__(self, model: TextModel, *, compile: bool = False, kept_as: torch.dtype | None = None):
        self._model = weakref.ref(model)
        self._steps = Steps(model, compile=compile, kept_as=kept_as)
        self._free: list[Recording] = []
        self._lock = threading.RLock()  # taken again where a writer that is collected gives its recording back

    def should_read(self, sources: Tensor) -> bool:
        """Whether sources (B, S) are better read by a recording, of a roomy shape, than at once."""
        batch, length = sources.shape
        roomy = _round_up(Shape(batch, 1, batch, length), None)
        return sources.is_cuda or (self._steps.are_compiled and roomy.memories * roomy.memory_length <= FEW_TOKENS)

    def lend(self, shape: Shape) -> Recording:
        """A recording for at least this shape, which nobody else uses."""
        model = self._model()
        assert model is not None
        roomy, addresses = _round_up(shape, model.config.max_len), _addresses(model)
        with self._lock:
            # Parameters that were replaced, not only changed, are elsewhere: what was recorded of the old ones is lost.
            self._free = [recording for recording in self._free if recording.addresses == addresses]
            found = next((recording for recording in self._free if recording.shape == roomy), None)
            if found is not None:
                self._free.remove(found)
                return found
        return Recording(model, roomy, self._steps)

    def take_back(self, recording: Recording) -> None:
        """It may be lent again, if there is room to keep it."""
        with self._lock:
            self._free.append(recording)
            while len(self._free) > MAX_RECORDINGS or sum(kept.nbytes for kept in self._free[:-1]) > MAX_BYTES:
                self._free.pop(0)


def _addresses(model: TextModel) -> tuple[int, ...]:
    """Of all parameters."""
    found = (parameter for module in modules_of(model) for parameter in module._parameters.values())
    places = (parameter.data_ptr() for parameter in found if parameter is not None)
    return torch.get_num_threads(), *places  # compiled steps have the number of threads in them too


def _round_up(shape: Shape, max_len: int | None) -> Shape:
    """A shape that serves many like it."""
    copies = shape.rows // shape.memories if shape.memories else 1
    groups = shape.rows // copies
    groups = next((step for step in ROW_STEPS if step >= groups), -(-groups // 64) * 64)
    capacity = -(-shape.capacity // TOKEN_STEP) * TOKEN_STEP
    return Shape(
        rows=groups * copies,
        capacity=_within(capacity, max_len, shape.capacity),
        memories=groups if shape.memories else 0,
        memory_length=_within(-(-shape.memory_length // TOKEN_STEP) * TOKEN_STEP, max_len, shape.memory_length),
    )


def _within(room: int, limit: int | None, least: int) -> int:
    """No more room than a model can use."""
    return room if limit is None else max(min(room, limit), least)


_RECORDINGS: "weakref.WeakKeyDictionary[TextModel, Recordings]" = weakref.WeakKeyDictionary()


def record_steps(model: TextModel, *, compile: bool = False, kept_as: torch.dtype | None = None) -> None:
    """Write by recordings with this model from now on. On a GPU that happens by itself, without `compile`.

    Compiling takes half a minute for 6 layers, minutes for 30, at each new shape, and as long again and more where
    sources are read by what is compiled: on a GPU, and on a CPU if they are short. It pays where many texts follow:
    most for one text at a time. What cannot be compiled whole raises.

    Keys and values are kept as numbers of the model's own kind, unless another is given: on a CPU float16 takes half
    the memory and less time, for an error in the fourth digit. (On a GPU another kind takes longer.)
    """
    if kept_as is not None and not kept_as.is_floating_point:
        raise ValueError(f"kept_as={kept_as}: expected a floating-point dtype, such as torch.float16")
    _RECORDINGS[model] = Recordings(model, compile=compile, kept_as=kept_as)


def recordings_of(model: TextModel) -> Recordings | None:
    """Where a model's recordings are, or None where it should step as it is: on a CPU, or while somebody looks on.

    Under autocast too.
    """
    is_watched = any(module._forward_hooks or module._forward_pre_hooks for module in modules_of(model))
    # A graph would keep computing in the numbers it was recorded in.
    if is_watched or torch.is_autocast_enabled(next(model.parameters()).device.type):
        return None
    if model not in _RECORDINGS and next(model.parameters()).is_cuda:
        record_steps(model)
    return _RECORDINGS.get(model)


class RecordedWriter(Writer):
    """A writer that plays a recording. Its rows live in some of the recording's; those that leave stay behind.

    An encoder-decoder's memory is given, or `source`, which is then read by the recording as well.
    """

    def __init__(
        self,
        model: TextModel,
        recordings: Recordings,
        rows: int,
        capacity: int,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        *,
        source: Tensor | None = None,
    ):
        read = memory if source is None else source
        memories, memory_length = (0, 0) if read is None else read.shape[:2]
        self.recording = recording = recordings.lend(Shape(rows, capacity, memories, memory_length))
        weakref.finalize(self, recordings.take_back, recording).atexit = False
        if recording.sees_stale:
            recording.cache.clear()
        recording.cache.restart()
        super().__init__(model, recording.cache, recording.memory, recording.memory_mask)
        if memory is not None:
            recording.remember(memory, memory_mask)
        self._unread = None if source is None else (source, memory_mask)
        self._rows = torch.arange(rows, device=self.device)
        self._are_first = True  # whether the rows are 0, 1, 2, ...

    @property
    def is_fed(self) -> bool:
        """Whether steps that follow each other unseen save time, and can: on a GPU, while rows are where they were."""
        return self.device.type == "cuda" and self._are_first

    @property
    def can_run_ahead(self) -> bool:
        """As above."""
        return self.device.type == "cuda" and self.recording.cache.length < self.recording.cache.capacity

    def step(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """As above; the scores are good until the next step."""
        cache, n = self.recording.cache, len(tokens)
        if self._unread is not None:
            source, source_mask = self._unread
            self.recording.tokens[:n] = tokens
            self._unread = None
            return self.recording.open(source, source_mask)[:n]
        if not cache.is_fixed:
            missing = cache.batch_size - n
            if missing and mask is not None:
                mask = pad(mask, (0, 0, 0, missing), value=True)
            scores = super().step(pad(tokens, (0, 0, 0, missing)), mask)[:n]
            cache.fix()
            return scores
        if self._are_first:
            self.recording.tokens[:n] = tokens
            return self.recording.play()[:n]
        self.recording.tokens[self._rows] = tokens
        return self.recording.play()[self._rows]

    def feeder(self, tokens: Tensor) -> Feeder | None:
        """As above."""
        if not self.is_fed:
            return None
        self.recording.tokens[: len(tokens)] = tokens
        return self.recording

    def keep(self, rows: Sequence[int]) -> None:
        """As above; nothing is moved."""
        self._rows = self._rows[torch.tensor(rows, device=self.device)]
        self._are_first = False

    def reorder(self, rows: Tensor, memories: Tensor | None = None) -> None:
        """As above. Rows stay with the memory they read; sentences that leave take theirs."""
        staying = self._rows
        if memories is not None:
            staying = self._rows.view(-1, len(rows) // len(memories))[memories].flatten()
            self._are_first = False
        order = torch.arange(self.cache.batch_size, device=self.device)
        order[staying] = self._rows[rows]
        self.cache.reorder(order)
        self._rows = staying
