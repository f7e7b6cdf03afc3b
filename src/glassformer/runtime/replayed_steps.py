"""Decoding steps on a CPU, replayed from C++ (`cpu_graphs.py`).

The batch shrinks when a text ends. One recorded step serves any number of rows (`resizable_graph.py`). If a model does
not allow that, or if the texts are few, there is a recorded step for each number of rows, or a little more. All of them
use the first rows of one cache. `runtime/choose_runner.py` decides when this pays.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from glassformer.nn import KVCache
from glassformer.nn.cache import find_moved
from glassformer.runtime.cpu_graphs import CpuGraph
from glassformer.runtime.recorded_steps import TOKEN_STEP, RecordedStepRunner, Recording
from glassformer.runtime.replay_memory import ReplayMemory
from glassformer.runtime.resizable_graph import ResizableGraph
from glassformer.runtime.step_runner import StepRunner

ROWS = (1, 2, 3, 4, 6, 8, 12, *range(16, 32, 4), *range(32, 80, 8), *range(80, 128, 16), *range(128, 513, 32))
"""Steps are recorded for these numbers of texts, so that a shrinking batch does not need a recording for each."""
MAX_FEW_TEXTS = 4
"""A recording for up to this many texts has a step for each number of them."""
MAX_REPLAYED_ROWS = 1024
"""Steps of more rows are not replayed, because a CPU spends most of their time in matrix products."""
MAX_REPLAYED_BYTES = 2 << 30
"""Steps whose cache would be larger are not replayed, because a recording rounds its sizes up."""


class ReplayedRecording(Recording):
    """The cache and the other buffers of a batch on a CPU, and its steps by number of rows."""

    MAX_BYTES = 1 << 30

    @staticmethod
    @override
    def round_rows(count: int) -> int:
        """Return the next power of two: a recording is slow to make, and steps compute only the rows in use."""
        return 1 << (count - 1).bit_length()

    @staticmethod
    @override
    def round_length(length: int) -> int:
        return max(TOKEN_STEP, 1 << (length - 1).bit_length()) if length else 0

    def __init__(self, *args: Any):
        super().__init__(*args)
        self._by_rows: dict[int, CpuGraph] = {}
        self._of_any: ResizableGraph | bool | None = None  # False if the step must be recorded for each number of rows
        self._results = ReplayMemory()

    @property
    @override
    def nbytes(self) -> int:
        return super().nbytes + self._results.nbytes

    def step_of_first(self, rows: int) -> Tensor:
        """Make a step with the first rows of `tokens` and of the cache, and return the logits (rows, V).

        The logits are valid until the next step.
        """
        self.cache.check_room(1)
        if self._of_any is None:
            self._of_any = self._record_for_any()
        if isinstance(self._of_any, ResizableGraph):
            scores = self._of_any(rows)
            self.cache.count()
            return scores
        texts = next((count for count in ROWS if count * self.copies >= rows), rows // self.copies)
        computed = min(texts * self.copies, self.shape.rows)
        if computed not in self._by_rows:
            self._by_rows[computed] = CpuGraph(
                self._steps.scorer(*self.first(computed, self.shape.memory_length)), self._results
            )
        scores = self._by_rows[computed]()
        self.cache.count()
        return scores[:rows]

    def _record_for_any(self) -> ResizableGraph | bool:
        """Record the step for any number of rows; return False if it cannot be, or if there are only a few texts."""
        texts = self.shape.rows // self.copies
        if texts <= MAX_FEW_TEXTS:
            return False

        def make(rows: int) -> Callable[[], Tensor]:
            return self._steps.scorer(*self.first(rows, self.shape.memory_length))

        graph = ResizableGraph(self._results)
        with self.cache.discarding_steps():
            return graph if graph.record(make, self.shape.rows, texts // 2 * self.copies) else False

    @property
    def copies(self) -> int:
        """The number of rows per encoder output; 1 without an encoder."""
        return self.shape.rows // self.shape.memories if self.shape.memories else 1

    def first(self, rows: int, length: int) -> tuple[Tensor, KVCache, Tensor | None, Tensor | None]:
        """Return the arguments of a step, with their first rows and the first `length` tokens of the encoder output.

        They share the memory of the whole ones.
        """
        cache, texts = self.cache.first_rows(rows), rows // self.copies
        if self.memory is None or self.memory_mask is None:
            return self.tokens[:rows], cache, None, None
        cache.memory_keys = [layer[:texts, :, :length] for layer in cache.memory_keys]
        cache.memory_values = [layer[:texts, :, :length] for layer in cache.memory_values]
        return self.tokens[:rows], cache, self.memory[:texts, :length], self.memory_mask[:texts, :length]


class ReplayedStepRunner(RecordedStepRunner):
    """A runner that replays steps on a CPU. The rows of its batch are the first rows of the recording."""

    recording: ReplayedRecording

    @override
    def step(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        cache = self.recording.cache
        if not cache.is_fixed:
            _, part, memory, memory_mask = self.recording.first(len(tokens), self.recording.used_length)
            scores = StepRunner(self.model, part, memory, memory_mask).step(tokens, mask)
            cache.length, cache.has_padding, cache.memory_is_ready = part.length, part.has_padding, part.memory_is_ready
            cache.fix()
            return scores
        self.recording.tokens[: len(tokens)] = tokens
        return self.recording.step_of_first(len(tokens))

    @override
    def keep(self, rows: Sequence[int]) -> None:
        """Keep only these rows: move them to the front."""
        self.reorder(torch.tensor(rows))

    @override
    def reorder(self, rows: Tensor, memories: Tensor | None = None) -> None:
        """Make row i a copy of row `rows[i]`. Fewer rows shrink the batch.

        `memories` holds the indices of the encoder outputs to keep; None keeps all that rows share.
        """
        recording = self.recording
        order = torch.arange(recording.shape.rows)
        order[: len(rows)] = rows
        recording.cache.reorder(order)
        if memories is None and recording.shape.memories == recording.shape.rows:
            memories = rows
        if memories is not None and recording.memory_mask is not None:
            stores = (*recording.cache.memory_keys, *recording.cache.memory_values, recording.memory_mask[:, None])
            moved = find_moved(memories)
            for store in (layer[:, :, : recording.used_length] for layer in stores):
                if moved is None:
                    store[: len(memories)] = store.index_select(0, memories)
                else:  # most rows stay where they are
                    store[moved] = store[memories[moved]]
