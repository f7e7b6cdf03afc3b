"""Forward passes over rows of a `CachePool`: read prompts, encode sources, take decoding steps, verify proposed tokens.

With `is_recorded`, decoding steps have fixed shapes and addresses and are replayed without Python: the number of rows
is rounded up to a few sizes, and each size is recorded once. On a GPU they are CUDA graphs. On a CPU with the C++
kernels, steps of few rows are replayed from C++ (`cpu_graphs.py`), and others are plain.
"""

import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from glassformer.kernels.cpp_kernels import CppKernels
from glassformer.kernels.kernel_set import KernelSet
from glassformer.models import DecoderModel, EncoderDecoderModel
from glassformer.nn.masks import pick
from glassformer.runtime.async_readback import upload
from glassformer.runtime.cache_pool import CachePool, PoolRow
from glassformer.runtime.cpu_graphs import CpuGraph
from glassformer.runtime.cuda_graphs import CudaGraph
from glassformer.runtime.pool_views import FirstTokens, NextTokens, PoolView, StepTokens
from glassformer.runtime.recorded_reading import RecordedReading, flops_per_token
from glassformer.runtime.recorded_steps import TOKEN_STEP, addresses_of
from glassformer.runtime.replayed_steps import ROWS
from glassformer.runtime.step_runner import TextModel, decode_at
from glassformer.text.tokenizer import PAD

GPU_ROWS = 1, 8, 32, 64, 128
"""The numbers of rows for which a GPU records steps, and multiples of 64. Few, because a recording takes up to a second
and a step of a GPU hardly longer with more rows."""
MAX_RECORDED = 24
"""The most recorded steps that a runner keeps; the least recently used are dropped first."""
MAX_REPLAYED_POOL_ROWS = 32
"""Steps of more rows are not replayed from C++, because each number of rows needs a recording."""
MAX_RECORDED_PROPOSAL = 8
"""The most proposed tokens whose verification is recorded, for a row that runs alone. Each number is recorded once."""


class PoolRunner:
    """Computes forward passes of one model with rows of one pool. Every method returns logits in float32 or float64."""

    def __init__(self, model: TextModel, pool: CachePool, *, is_recorded: bool = False):
        self.pool = pool
        self._model = weakref.ref(model)  # a runner may be kept for as long as its model exists
        self.is_recorded = is_recorded
        """Whether steps are recorded. It may be changed between steps."""
        self.replays_from_cpp = pool.device.type == "cpu" and isinstance(pool.kernels, CppKernels)
        """Whether recorded steps are replayed from C++. Then only steps of few rows are recorded."""
        # One memory pool for all graphs, because the logits of a step are used before the next step.
        self.graph_pool = torch.cuda.graph_pool_handle() if pool.device.type == "cuda" else None
        self._recorded: OrderedDict[tuple[int, ...], _RecordedStep] = OrderedDict()
        self._addresses: tuple[int, ...] = ()
        self._reading = RecordedReading(pool, self._first_scores, flops_per_token(model), model.config.max_len)

    @property
    def model(self) -> TextModel:
        """The model, which the caller must keep."""
        model = self._model()
        assert model is not None
        return model

    @property
    def can_run_ahead(self) -> bool:
        """Whether the caller may launch the next step before it reads the tokens of this one.

        Recorded steps may, except on a CPU, which gains nothing from it.
        """
        return self.is_recorded and not self.replays_from_cpp

    def compute_with(self, model: TextModel) -> None:
        """Compute with this model from now on: the runner's own, or its packed twin.

        Recorded steps are dropped if parameters were replaced or the number of threads has changed.
        """
        addresses = addresses_of(model)
        if addresses != self._addresses or model is not self._model():
            self._recorded.clear()
            self._reading.clear()
            self._addresses = addresses
        self._model = weakref.ref(model)

    def read(self, rows: Sequence[PoolRow], texts: Sequence[Sequence[int]]) -> Tensor:
        """Read more tokens into each row and return the logits (N, V) of the token after the last one.

        Each text has at least one token. A text that begins an empty row is a prompt, or its first part.
        """
        scores = self._reading.read(rows, texts) if self._records_reading else None
        if scores is None:
            last = torch.tensor([len(text) - 1 for text in texts], device=self.pool.device)
            scores = self._logits(self._hidden(rows, texts, last))[:, 0]
        self._note(rows, texts)
        return scores

    @property
    def reading_sizes(self) -> list[tuple[int, int]]:
        """The numbers of prompts and of tokens for which reading is recorded, when such prompts are first read."""
        return self._reading.all_sizes() if self._records_reading else []

    @property
    def _records_reading(self) -> bool:
        return self.is_recorded and self.graph_pool is not None and isinstance(self.model, DecoderModel)

    def _first_scores(self, tokens: Tensor, view: PoolView, last: Tensor) -> Tensor:
        """Read tokens (N, T) that begin texts, and return the logits (N, V) after the last ones (N,)."""
        return self._logits(self._decode(tokens, view, None, last))[:, 0]

    def verify(self, rows: Sequence[PoolRow], texts: Sequence[Sequence[int]]) -> Tensor:
        """Read more tokens into each row and return the logits (N, T, V) after every one of them.

        T is the length of the longest text; the logits after shorter texts are meaningless. The caller shortens the
        rows whose tokens it rejects with `CachePool.truncate`.
        """
        if self._can_record_verification(rows, texts):
            scores = self._recorded_pass(torch.tensor(texts, device=self.pool.device), rows)
        else:
            scores = self._logits(self._hidden(rows, texts))
        self._note(rows, texts)
        return scores

    def read_sources(self, rows: Sequence[PoolRow], sources: Sequence[Sequence[int]], begin: int) -> Tensor:
        """Encode the source of each row, read the token `begin`, and return the logits (N, V) of the first token."""
        model = self.model
        assert isinstance(model, EncoderDecoderModel)
        counts = [len(source) for source in sources]
        source, mask = _pad(sources, self.pool.device)
        # The base class's methods, because those of the documents' `Transformer` take other masks.
        memory = EncoderDecoderModel.encode(model, source, mask, kernels=self.pool.kernels)
        view = FirstTokens(self.pool, rows, counts)
        given = torch.full((len(rows), 1), begin, device=self.pool.device)
        hidden = EncoderDecoderModel.decode(model, given, memory, mask, cache=view)
        for row, count in zip(rows, counts, strict=True):
            row.memory_length = count
        self._note(rows, [[begin]] * len(rows))
        return self._logits(hidden)[:, 0]

    def step(self, tokens: Tensor) -> Tensor:
        """Feed one token, (N, 1), to each of the first N rows and return the logits (N, V) of the next ones.

        All running rows must be these rows (`CachePool.compact`). The logits of a recorded step are valid until the
        next step. `PoolRow.tokens` is not changed, because the tokens may not have left the device yet.
        """
        rows = self.pool.rows[: len(tokens)]
        is_recorded = self.is_recorded and not (self.replays_from_cpp and len(rows) > MAX_REPLAYED_POOL_ROWS)
        scores = self._recorded_step(tokens) if is_recorded else self._plain_step(rows, tokens)
        self._count_step(len(rows))
        return scores

    def greedy_step(self, tokens: Tensor, bias: Tensor) -> "tuple[Tensor, Tensor]":
        """Make a recorded step that also chooses the next tokens: those with the highest logit + bias (V,).

        Returns the scores and the ids of these tokens as numbers (2, N), and the ids as tokens (N, 1), which the next
        such step can take. Both are valid until the next step.
        """
        rows = self._rounded_rows(len(tokens))
        results, chosen = self._recorded_for(rows[: len(tokens)], rows, 1, is_greedy=True).choose(
            tokens, *self._numbers_of(len(tokens), rows), bias
        )
        self._count_step(len(tokens))
        return results, chosen

    def _count_step(self, n: int) -> None:
        capacity = self.pool.capacity
        for row in self.pool.rows[:n]:
            if row.length < capacity:
                row.length += 1

    def _plain_step(self, rows: list[PoolRow], tokens: Tensor) -> Tensor:
        starts = self._starts(rows)
        longest_memory = max(row.memory_length for row in rows)
        view = StepTokens(
            self.pool,
            torch.tensor(starts, device=self.pool.device),
            n_keys=max(starts) + 1,
            even_start=starts[0] if min(starts) == max(starts) else None,
            memory_length=longest_memory,
        )
        mask = None
        if longest_memory:
            lengths = torch.tensor([row.memory_length for row in rows], device=self.pool.device)
            mask = _memory_mask(lengths, longest_memory)
        return self._logits(self._decode(tokens, view, mask))[:, 0]

    def _recorded_step(self, tokens: Tensor) -> Tensor:
        return self._recorded_pass(tokens, self._rounded_rows(len(tokens)))[:, 0]

    def _rounded_rows(self, n: int) -> list[PoolRow]:
        """Return the first `n` rows and some more, so that few numbers of rows have to be recorded."""
        sizes = ROWS if self.replays_from_cpp else GPU_ROWS
        return self.pool.rows[: next((step for step in sizes if step >= n), -(-n // 64) * 64)]

    def _can_record_verification(self, rows: Sequence[PoolRow], texts: Sequence[Sequence[int]]) -> bool:
        """Return whether a recorded pass can read these texts: a single one, not too long, in the first row."""
        if not self.is_recorded or len(rows) > 1 or rows[0].index or len(texts[0]) - 1 > MAX_RECORDED_PROPOSAL:
            return False
        return rows[0].length + len(texts[0]) + rows[0].memory_length <= self.pool.capacity

    def _recorded_pass(self, tokens: Tensor, rows: Sequence[PoolRow]) -> Tensor:
        """Feed tokens (N, T) to the first N of some rows, which are the first of the pool; return the logits (N, T, V).

        The rows after the first N are computed, too, so that few numbers of rows have to be recorded.
        """
        n, n_tokens = tokens.shape
        return self._recorded_for(rows[:n], rows, n_tokens)(tokens, *self._numbers_of(n, rows))

    def _recorded_for(
        self, running: Sequence[PoolRow], rows: Sequence[PoolRow], n_tokens: int, *, is_greedy: bool = False
    ) -> "_RecordedStep":
        """Return the recorded step of these rows, of which some run. With `is_greedy` it also chooses tokens."""
        capacity = self.pool.capacity
        longest = max(row.memory_length for row in running)
        memory_length = min(-(-longest // TOKEN_STEP) * TOKEN_STEP, capacity)
        key = len(rows), n_tokens, capacity, memory_length, int(is_greedy)
        if key not in self._recorded:
            self._recorded[key] = _RecordedStep(self, len(rows), n_tokens, memory_length, is_greedy=is_greedy)
            if len(self._recorded) > MAX_RECORDED:
                self._recorded.popitem(last=False)
        self._recorded.move_to_end(key)
        return self._recorded[key]

    def _numbers_of(self, n: int, rows: Sequence[PoolRow]) -> tuple[list[int], list[int]]:
        """Return where the next token of each row goes, and the number of encoder outputs of the first `n` rows."""
        return self._starts(rows), [row.memory_length for row in rows[:n]] + [0] * (len(rows) - n)

    def _starts(self, rows: Sequence[PoolRow]) -> list[int]:
        """Return where the next token of each row goes.

        The last slot of a full row is overwritten: such a row has ended, and its step is made in vain. Rows that are
        not running have a free slot there, too (`CachePool.keep`).
        """
        last = self.pool.capacity - 1
        return [row.length if row.length < last else last for row in rows]

    def _hidden(self, rows: Sequence[PoolRow], texts: Sequence[Sequence[int]], wanted: Tensor | None = None) -> Tensor:
        """Read more tokens into each row and return the hidden states (N, T, C), padded on the right.

        With `wanted` (N,) they are those of one token of each row, (N, 1, C).
        """
        counts = [len(text) for text in texts]
        padded, _ = _pad(texts, self.pool.device)
        if not any(row.length for row in rows):
            return self._decode(padded, FirstTokens(self.pool, rows), None, wanted)
        longest, mask = max(row.memory_length for row in rows), None
        if longest:
            lengths = torch.tensor([row.memory_length for row in rows], device=self.pool.device)
            mask = _memory_mask(lengths, longest)
        return self._decode(padded, NextTokens(self.pool, rows, counts, longest), mask, wanted)

    def _note(self, rows: Sequence[PoolRow], texts: Sequence[Sequence[int]]) -> None:
        for row, text in zip(rows, texts, strict=True):
            row.tokens = [*row.tokens[: row.length], *text]
            row.length += len(text)
            self.pool.touch(row)

    def _decode(
        self, tokens: Tensor, view: PoolView, memory_mask: Tensor | None, wanted: Tensor | None = None
    ) -> Tensor:
        if isinstance(self.model, DecoderModel):
            if wanted is not None:
                return decode_at(self.model, tokens, wanted=wanted, cache=view)
            return self.model.decode(tokens, cache=view)
        # The keys and values of the encoder's output are in the pool; of the output itself only the shape matters.
        nothing = next(self.model.parameters()).new_zeros(())
        memory = nothing.expand(len(tokens), view.memory_length, self.model.config.d_model)
        hidden = EncoderDecoderModel.decode(self.model, tokens, memory, memory_mask, cache=view)
        return hidden if wanted is None else pick(hidden, wanted)

    def _logits(self, hidden: Tensor) -> Tensor:
        scores = self.model.apply_head(hidden)
        return scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores


class _RecordedStep:
    """A step of a fixed number of rows and tokens per row, from buffers to buffers.

    It is a CUDA graph on a GPU, a program that C++ replays on a CPU with the C++ kernels, and plain code elsewhere.
    With `is_greedy` the step also chooses the next tokens and writes them into `tokens`.
    """

    def __init__(self, runner: PoolRunner, n_rows: int, n_tokens: int, memory_length: int, *, is_greedy: bool = False):
        device = runner.pool.device
        self.tokens = torch.zeros(n_rows, n_tokens, dtype=torch.long, device=device)
        self.numbers = torch.zeros(3, n_rows, dtype=torch.long, device=device)
        """Where each row's token goes, whether the row is running (1 or 0), and the number of its encoder outputs."""
        self._expected: list[list[int]] = []  # what `numbers` will hold at the next step
        starts, is_active = self.numbers[0], self.numbers[1].bool()
        view = StepTokens(runner.pool, starts, is_active, n_tokens=n_tokens, memory_length=memory_length)
        compute = partial(_score, runner, self.tokens, self.numbers, view, is_narrow=is_greedy)
        if is_greedy:
            self._bias = torch.zeros(runner.model.config.vocab_size, device=device)
            self._given_bias: Tensor | None = None  # the tensor that `_bias` is a copy of
            self._results = torch.zeros(1, 2, n_rows, device=device)
            slot = torch.zeros(1, dtype=torch.long, device=device)
            compute = partial(_choose, runner.pool.kernels, compute, self._bias, self.tokens, slot, self._results)
        self._compute: Callable[[], Tensor] = compute
        if runner.graph_pool is not None:
            self._compute = CudaGraph(compute, view, (self.tokens, self.numbers), runner.graph_pool)
        elif runner.replays_from_cpp:
            self._compute = CpuGraph(compute)

    def __call__(self, tokens: Tensor, starts: list[int], memory_lengths: list[int]) -> Tensor:
        n = len(tokens)
        if tokens.data_ptr() != self.tokens.data_ptr():  # else they are those that this step has chosen
            self.tokens[:n] = tokens
        is_running = [1] * n + [0] * (len(starts) - n)
        wanted = [starts, is_running, memory_lengths]
        if wanted != self._expected:  # a row has joined or left: the numbers on the device are wrong
            self.numbers.copy_(upload(wanted, self.numbers.device))
        scores = self._compute()
        self._expected = [[start + runs for start, runs in zip(starts, is_running, strict=True)], *wanted[1:]]
        return scores[:n]

    def choose(
        self, tokens: Tensor, starts: list[int], memory_lengths: list[int], bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Make a greedy step and return what `PoolRunner.greedy_step` does."""
        if bias is not self._given_bias:
            self._bias.copy_(bias)
            self._given_bias = bias
        chosen = self(tokens, starts, memory_lengths)
        return self._results[0, :, : len(tokens)].contiguous(), chosen


def _choose(
    kernels: KernelSet, score: Callable[[], Tensor], bias: Tensor, tokens: Tensor, slot: Tensor, results: Tensor
) -> Tensor:
    """Choose the best token of each row, write it to `tokens` and `results`, and return `tokens`."""
    kernels.choose_token(score()[:, 0], bias, tokens, slot, slot, results)
    return tokens


def _score(runner: PoolRunner, tokens: Tensor, numbers: Tensor, view: StepTokens, *, is_narrow: bool) -> Tensor:
    """Return the logits (N, T, V) of a recorded step, and advance the running rows in `numbers` by one token.

    With `is_narrow` they have the dtype of the model, else they are in float32.
    """
    view.is_active = numbers[1] > 0
    mask = _memory_mask(numbers[2], view.memory_length) if view.memory_length else None
    hidden = runner._decode(tokens, view, mask)
    scores = runner.model.apply_head(hidden) if is_narrow else runner._logits(hidden)
    numbers[0].add_(numbers[1])
    return scores


def _memory_mask(lengths: Tensor, longest: int) -> Tensor:
    """Return (N, longest), True for each row's encoder outputs, which are at the right end."""
    return torch.arange(longest, 0, -1, device=lengths.device) <= lengths[:, None]


def _pad(texts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Return texts as a tensor padded on the right, and its mask, which is None if there is no padding."""
    longest = max(map(len, texts))
    padded = torch.tensor([[*text, *[PAD] * (longest - len(text))] for text in texts], device=device)
    if all(len(text) == longest for text in texts):
        return padded, None
    lengths = torch.tensor([len(text) for text in texts], device=device)
    return padded, torch.arange(longest, device=device) < lengths[:, None]
