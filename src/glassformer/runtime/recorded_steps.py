"""Recorded steps: a decoding step prepared once for fixed shapes and replayed for every token.

Small steps are dominated by the time that Python takes. On a GPU a CUDA graph launches all kernels of a step at once;
on any device a step can also be compiled. Both need fixed shapes, and a graph needs fixed addresses. So a `Recording`
owns its cache, has a capacity rounded up from what was asked for, and is lent to one runner at a time. The model's code
is the same, and results differ by rounding only.

A recording has two steps: the one that returns logits and, for an encoder-decoder, the first one, which also encodes
the source. A search may store its own recorded steps in it (`decoding/recorded_greedy.py`, `recorded_beam.py`).
"""

import threading
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad
from typing_extensions import override

from glassformer.kernels.kernel_registry import PLAIN
from glassformer.kernels.kernel_set import KernelSet
from glassformer.nn.attention_backends import reads_unfilled
from glassformer.runtime.cuda_graphs import CudaGraph
from glassformer.runtime.fixed_cache import FixedCache
from glassformer.runtime.recorded_prompt import MAX_PROMPT_TOKENS, RecordedPrompt
from glassformer.runtime.step_functions import Steps
from glassformer.runtime.step_runner import StepRunner, TextModel, modules_of

ROW_STEPS, TOKEN_STEP = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128), 32
"""Batch rows are rounded up to one of `ROW_STEPS`, lengths to a multiple of `TOKEN_STEP`."""
MAX_STEPS_AHEAD = 4
"""Steps launched before their results are read. Up to twice as many are wasted when a text ends."""
FEW_TOKENS = 64
"""A CPU that encodes this many source tokens spends as long in Python as in matrix products."""
MAX_RECORDINGS = 16
"""The most recordings that a model keeps for later batches; the least recently used are dropped first."""
MAX_CACHED = 5
"""The most recorded steps of searches that a recording keeps."""

Cached = TypeVar("Cached")


class Shape(NamedTuple):
    """The sizes of a recording: batch rows, cached tokens per row, encoder outputs, and tokens per encoder output."""

    rows: int
    capacity: int
    memories: int = 0
    memory_length: int = 0


class Recording:
    """The recorded steps of a model for one shape, with the buffers that they read and write."""

    MAX_BYTES = 2 << 30
    """The most memory of all recordings that a model keeps for later batches."""

    def __init__(
        self,
        model: TextModel,
        shape: Shape,
        steps: Steps,
        kernels: KernelSet = PLAIN,
        addresses: tuple[int, ...] | None = None,
    ):
        parameter = next(model.parameters())
        self.shape = shape
        self.kernels = kernels
        self._steps = steps
        self.addresses = addresses_of(model) if addresses is None else addresses
        """If they change, the recording is dropped."""
        self.cache = FixedCache(
            n_layers=model.config.n_decoder_layers,
            batch_size=shape.rows,
            capacity=shape.capacity,
            n_kv_heads=model.config.kv_heads,
            head_dim=model.config.head_size,
            memory_length=shape.memory_length,
            memory_rows=shape.memories or None,
            dtype=steps.cache_dtype or parameter.dtype,
            device=parameter.device,
        )
        self.cache.kernels = kernels
        self.reads_stale_entries = reads_unfilled(model, self.cache.keys[0], kernels)
        """Whether a step also reads entries that an earlier text left in the cache."""
        device = parameter.device
        self.tokens = torch.zeros(shape.rows, 1, dtype=torch.long, device=device)
        sizes = shape.memories, shape.memory_length
        self.source = torch.zeros(sizes, dtype=torch.long, device=device) if shape.memories else None
        self.memory = parameter.new_zeros(*sizes, model.config.d_model) if shape.memories else None
        self.memory_mask = torch.zeros(sizes, dtype=torch.bool, device=device) if shape.memories else None
        self.used_length = shape.memory_length
        """The length of the longest source of the current batch, if `set_memory` was called."""
        self.vocab_size = model.config.vocab_size
        state = self.tokens, self.cache, self.memory, self.memory_mask
        self.score = steps.scorer(*state)
        """The step from `tokens` to logits, not recorded. Searches make it a part of the steps that they record."""
        self.narrow_score = self.score if steps.are_compiled else steps.narrow_scorer(*state)
        """The same with logits in the dtype of the model, or in float32."""
        self._cached: dict[Hashable, Any] = {}
        # One memory pool for all graphs, because only one of them runs at a time.
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        self._seen_prompts: set[tuple[int, bool]] = set()
        self._step = self.record(self.score)
        self._first_step = self.record(steps.first_step(*state, self.source))

    @classmethod
    def round_up(cls, shape: Shape, max_len: int | None) -> Shape:
        """Return the shape rounded up, so that one recording serves many batches of similar size."""

        def longer(length: int) -> int:
            room = cls.round_length(length)
            return room if max_len is None else max(min(room, max_len), length)

        copies = shape.rows // shape.memories if shape.memories else 1
        groups = cls.round_rows(shape.rows // copies)
        memories = groups if shape.memories else 0
        return Shape(groups * copies, longer(shape.capacity), memories, longer(shape.memory_length))

    @staticmethod
    def round_rows(count: int) -> int:
        """Return a number of texts rounded up."""
        return next((step for step in ROW_STEPS if step >= count), -(-count // 64) * 64)

    @staticmethod
    def round_length(length: int) -> int:
        """Return a number of tokens rounded up."""
        return -(-length // TOKEN_STEP) * TOKEN_STEP

    def record(self, compute: Callable[[], Tensor], *buffers: Tensor) -> Callable[[], Tensor]:
        """Return `compute` as a CUDA graph on a GPU, and unchanged elsewhere.

        `buffers` are the tensors that `compute` changes in addition to `tokens` and the cache.
        """
        if self._pool is None:
            return compute
        # It holds the parts, not `self`: a reference cycle would keep the GPU memory until garbage collection.
        return CudaGraph(compute, self.cache, (self.tokens, *buffers), self._pool)

    def cached(self, key: Hashable, make: Callable[[], Cached]) -> Cached:
        """Return the object under `key`, such as a search's recorded step; `make` it if it is missing (LRU cache)."""
        found: Cached = self._cached.pop(key) if key in self._cached else make()
        self._cached[key] = found
        while len(self._cached) > MAX_CACHED:
            self._cached.pop(next(iter(self._cached)))
        return found

    def recorded_prompt(self, tokens: Tensor, mask: Tensor | None) -> RecordedPrompt | None:
        """Return the recorded pass that reads prompts of this shape into the cache; None to read them plainly.

        On a GPU short prompts are recorded when their shape comes for the second time.
        """
        key = tokens.shape[1], mask is not None
        is_short = len(tokens) == self.shape.rows and tokens.numel() <= MAX_PROMPT_TOKENS
        if self._pool is None or self.shape.memories or not is_short:
            return None
        if key not in self._seen_prompts:
            self._seen_prompts.add(key)
            return None
        make = partial(RecordedPrompt, self.cache, self._steps.reader, self.record, *key)
        return self.cached(("prompt", *key), make)

    @property
    def nbytes(self) -> int:
        """The size of the key-value cache in bytes."""
        return self.cache.nbytes

    def set_memory(self, memory: Tensor, mask: Tensor | None) -> None:
        """Copy an encoder output (B, S, C) and its mask into the recording's buffers, padded to its shape."""
        assert self.memory is not None
        rows, length = memory.shape[:2]
        self.memory.zero_()[:rows, :length] = memory
        self.used_length = length
        self._set_mask(rows, length, mask)

    def step_from_source(self, source: Tensor, mask: Tensor | None) -> Tensor:
        """Encode sources (B, S), make the first step from `tokens`, and return its logits (N, V).

        The logits are valid until the next step.
        """
        assert self.source is not None
        rows, length = source.shape
        self.source.zero_()[:rows, :length] = source
        self._set_mask(rows, length, mask)
        scores = self._first_step()
        self.cache.note_first_step()
        return scores

    def _set_mask(self, rows: int, length: int, mask: Tensor | None) -> None:
        assert self.memory_mask is not None
        self.memory_mask.fill_(False)[:rows, :length] = True if mask is None else mask

    def step(self) -> Tensor:
        """Run the recorded step on `tokens` and return the logits (N, V), valid until the next step."""
        self.cache.check_room(1)
        scores = self._step()
        self.cache.count()
        return scores


class Recordings:
    """The recordings of one model: makes them, lends them and keeps them.

    With `compile` their steps are compiled. `kind` is the class of the recordings.
    """

    def __init__(
        self,
        model: TextModel,
        *,
        compile: bool = False,
        cache_dtype: torch.dtype | None = None,
        kind: type[Recording] = Recording,
    ):
        self._kind = kind
        self._model = weakref.ref(model)
        self._steps = Steps(model, compile=compile, cache_dtype=cache_dtype)
        self._free: list[Recording] = []
        self._lock = threading.Lock()

    @property
    def are_compiled(self) -> bool:
        """Whether the steps are compiled."""
        return self._steps.are_compiled

    def is_for(self, model: TextModel) -> bool:
        """Return whether these are recordings of this very model."""
        return self._model() is model

    def of_another(self, model: TextModel) -> "Recordings":
        """Return new recordings of another model, with the same options."""
        return Recordings(model, compile=self.are_compiled, cache_dtype=self._steps.cache_dtype)

    def should_read(self, sources: Tensor) -> bool:
        """Return whether a recording should encode the sources (B, S): on a GPU, or if compiled and they are short."""
        batch, length = sources.shape
        roomy = self._kind.round_up(Shape(batch, 1, batch, length), None)
        return sources.is_cuda or (self._steps.are_compiled and roomy.memories * roomy.memory_length <= FEW_TOKENS)

    @contextmanager
    def borrow(
        self, shape: Shape, kernels: KernelSet = PLAIN, addresses: tuple[int, ...] | None = None
    ) -> Iterator[Recording]:
        """Return a context manager that lends a recording of at least this shape, for the block only.

        `addresses` are those of `addresses_of`, for the model or for one whose packed twin it is.
        """
        recording = self._take(shape, kernels, addresses)
        try:
            yield recording
        finally:
            self._give_back(recording)

    def _take(self, shape: Shape, kernels: KernelSet, addresses: tuple[int, ...] | None) -> Recording:
        model = self._model()
        assert model is not None
        roomy = self._kind.round_up(shape, model.config.max_len)
        addresses = addresses_of(model) if addresses is None else addresses
        with self._lock:
            # Replaced parameters have other addresses, so recordings of the old ones are dropped.
            self._free = [recording for recording in self._free if recording.addresses == addresses]
            for recording in self._free:
                if recording.shape == roomy and recording.kernels is kernels:
                    self._free.remove(recording)
                    return recording
        return self._kind(model, roomy, self._steps, kernels, addresses)

    def _give_back(self, recording: Recording) -> None:
        with self._lock:
            self._free.append(recording)
            while (
                len(self._free) > MAX_RECORDINGS or sum(kept.nbytes for kept in self._free[:-1]) > self._kind.MAX_BYTES
            ):
                self._free.pop(0)


def addresses_of(model: TextModel, modules: Sequence[torch.nn.Module] | None = None) -> tuple[int, ...]:
    """Return the number of threads and the addresses of all parameters. If they change, recordings are dropped.

    `modules` are those of `modules_of`, if the caller knows them.
    """
    modules = modules_of(model) if modules is None else modules
    found = [parameter for module in modules for parameter in module._parameters.values()]
    return torch.get_num_threads(), *[parameter.data_ptr() for parameter in found if parameter is not None]


class RecordedStepRunner(StepRunner):
    """A runner that replays the recorded steps of a `Recording` instead of calling the model.

    The recording may have more batch rows than the runner; dropped rows are still computed. For an encoder-decoder pass
    `memory`, the encoder output, or `source` (B, S), which the first step then encodes.
    """

    def __init__(
        self,
        model: TextModel,
        recording: Recording,
        rows: int,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        *,
        source: Tensor | None = None,
    ):
        self.recording = recording
        if recording.reads_stale_entries:
            recording.cache.clear()
        if source is None:  # otherwise the first step does it
            recording.cache.restart()
        super().__init__(model, recording.cache, recording.memory, recording.memory_mask)
        if memory is not None:
            recording.set_memory(memory, memory_mask)
        self._unread = None if source is None else (source, memory_mask)
        self._n_rows = rows
        self._in_order = True  # whether the rows are 0, 1, 2, ... of the recording

    @cached_property
    def _rows(self) -> Tensor:
        """The row of the recording that holds each row of the runner. Many batches end without asking."""
        return torch.arange(self._n_rows, device=self.device)

    @property
    def can_chain_steps(self) -> bool:
        """Whether a step can read the tokens that the previous step left on the device, without a copy to the host.

        That is so on a GPU, as long as no sequence has been dropped from the batch.
        """
        return self.device.type == "cuda" and self._in_order

    @property
    @override
    def can_run_ahead(self) -> bool:
        return self.device.type == "cuda" and self.recording.cache.length < self.recording.cache.capacity

    @override
    def prefill(self, tokens: Tensor, mask: Tensor | None = None, *, copies: int = 1) -> Tensor:
        scores = super().prefill(tokens, mask, copies=copies)
        if not self.recording.cache.is_fixed:
            self.recording.cache.fix()
        return scores

    @override
    def step(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Like `StepRunner.step`, but the logits are valid only until the next step."""
        cache, n = self.recording.cache, len(tokens)
        if self._unread is not None:
            source, source_mask = self._unread
            self.recording.tokens[:n] = tokens
            self._unread = None
            return self.recording.step_from_source(source, source_mask)[:n]
        if not cache.is_fixed:
            missing = cache.batch_size - n
            if missing and mask is not None:
                mask = pad(mask, (0, 0, 0, missing), value=True)
            tokens = pad(tokens, (0, 0, 0, missing))
            recorded = self.recording.recorded_prompt(tokens, mask)
            scores = super().step(tokens, mask) if recorded is None else recorded(tokens, mask)
            cache.fix()
            return scores[:n]
        if self._in_order:
            self.recording.tokens[:n] = tokens
            return self.recording.step()[:n]
        self.recording.tokens[self._rows] = tokens
        return self.recording.step()[self._rows]

    @override
    def keep(self, rows: Sequence[int]) -> None:
        """Keep only these rows. Nothing is moved: the other rows are still computed, and their results ignored."""
        self._rows = self._rows[torch.tensor(rows, device=self.device)]
        self._in_order = False

    @override
    def reorder(self, rows: Tensor, memories: Tensor | None = None) -> None:
        """Make row i a copy of row `rows[i]`. `memories`: the encoder outputs whose rows stay; None keeps all."""
        staying = self._rows
        if memories is not None:
            staying = self._rows.view(-1, len(rows) // len(memories))[memories].flatten()
            self._in_order = False
        order = torch.arange(self.cache.batch_size, device=self.device)
        order[staying] = self._rows[rows]
        self.cache.reorder(order)
        self._rows = staying
