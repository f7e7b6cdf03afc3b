"""The one place that decides how a model's decoding steps are computed.

The rules, in order:

1. Kernels: a GPU uses the Triton kernels where they run. A CPU uses the C++ kernels for quantized models and for
   models given to `use_compiled_kernels`, and plain torch otherwise.
2. Steps are recorded on a GPU, and on a CPU after `record_steps`. A CPU with the C++ kernels also replays the steps of
   at most 32 rows (`replayed_steps.py`), where Python would take a large part of the time. Steps are plain if the model
   has forward hooks, under autocast, if attention weights are needed, and if the rows will join a running batch.
3. A recording also encodes the sources of an encoder-decoder on a GPU, and on a CPU if its steps are compiled and the
   sources are short. Several samples of one source are an exception: each needs its own copy of the encoder output, so
   the source is encoded before.

Packing (`packed_model.py`) and quantizing (`quantized_model.py`) make a changed copy of a model; the rules apply to it.
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from glassformer.kernels.kernel_registry import kernels_for
from glassformer.kernels.kernel_set import KernelSet
from glassformer.models import DecoderModel, EncoderDecoderModel
from glassformer.nn.attention_backends import reads_unfilled
from glassformer.nn.groupwise_linear import GroupwiseLinear
from glassformer.nn.quantized_linear import Int8Linear
from glassformer.runtime.cache_pool import CachePool
from glassformer.runtime.pool_runner import PoolRunner
from glassformer.runtime.recorded_steps import RecordedStepRunner, Recordings, Shape
from glassformer.runtime.replayed_steps import ROWS, ReplayedRecording, ReplayedStepRunner
from glassformer.runtime.step_runner import StepRunner, TextModel, modules_of

MAX_REPLAYED_ROWS = max(ROWS)
"""For more rows a CPU spends so long in matrix products that Python does not matter."""
_RECORDINGS: "weakref.WeakKeyDictionary[TextModel, Recordings]" = weakref.WeakKeyDictionary()
_REPLAYED: "weakref.WeakKeyDictionary[TextModel, Recordings]" = weakref.WeakKeyDictionary()
_WITH_COMPILED_KERNELS: "weakref.WeakSet[TextModel]" = weakref.WeakSet()


@dataclass(frozen=True)
class ExpectedWork:
    """What `choose_execution` must know about a batch to decide how its decoding steps are computed."""

    rows: int
    """The number of sequences in the batch."""
    capacity: int
    """The most tokens of a sequence that the key-value cache must hold."""
    source: Tensor | None = None
    """(B, S), the source tokens of an encoder-decoder."""
    source_mask: Tensor | None = None
    copies: int = 1
    """The number of sequences per source: beams or samples."""
    shares_memory: bool = True
    """Whether the sequences of a source share its encoder output. Beams do; samples leave the batch one by one."""
    needs_attention: bool = False
    """Whether attention weights are captured at each step."""
    joins_batch: bool = False
    """Whether the sequences will be merged into a running batch (`decoding/engine.py`)."""


class Execution(NamedTuple):
    """How decoding steps are computed: the decision of `choose_execution`."""

    kernels: KernelSet
    recordings: Recordings | None
    """The recordings of the model to replay; None for plain steps."""
    records_source: bool = False
    """Whether the recording also encodes the sources."""


def choose_execution(model: TextModel, work: ExpectedWork) -> Execution:
    """Return how the steps of this model are computed for this batch, by the rules in the module's docstring."""
    parameter = next(model.parameters())
    kernels = choose_kernels(model)
    is_watched = any(module._forward_hooks or module._forward_pre_hooks for module in modules_of(model))
    # A recording keeps the dtypes it was made with, so autocast would have no effect on it.
    is_plain = (
        is_watched or work.needs_attention or work.joins_batch or torch.is_autocast_enabled(parameter.device.type)
    )
    recordings = None if is_plain else _recordings_of(model, work, kernels)
    if recordings is None or work.source is None:
        return Execution(kernels, recordings)
    one_memory_each = work.copies == 1 or work.shares_memory
    return Execution(kernels, recordings, one_memory_each and recordings.should_read(work.source))


def _recordings_of(model: TextModel, work: ExpectedWork, kernels: KernelSet) -> Recordings | None:
    """Return the recordings that the steps of a batch are replayed from; None if plain steps are as fast."""
    parameter = next(model.parameters())
    if model not in _RECORDINGS and parameter.is_cuda:
        record_steps(model)
    if model in _RECORDINGS:
        return _RECORDINGS[model]
    keys = parameter.new_empty(1, 1, 1, model.config.head_size)
    if work.rows > MAX_REPLAYED_ROWS or parameter.is_cuda or reads_unfilled(model, keys, kernels):
        return None
    if model not in _REPLAYED:
        _REPLAYED[model] = Recordings(model, kind=ReplayedRecording, exact_rows=True)
    return _REPLAYED[model]


def choose_kernels(model: TextModel) -> KernelSet:
    """Return the kernels for the steps of this model on its device."""
    device = next(model.parameters()).device
    compiled = model in _WITH_COMPILED_KERNELS or any(
        isinstance(module, Int8Linear | GroupwiseLinear) for module in modules_of(model)
    )
    return kernels_for(device, compiled=compiled)


@contextmanager
def open_runner(model: TextModel, work: ExpectedWork) -> Iterator[StepRunner]:
    """Return a context manager that yields a runner for this batch, valid inside the block (see `choose_execution`).

    The sources of an encoder-decoder are encoded here, or by the runner's first step if the recording does that.
    """
    execution = choose_execution(model, work)
    memory, mask = None, work.source_mask
    if isinstance(model, EncoderDecoderModel) and work.source is not None:
        if execution.records_source:
            model.source_embeddings.check("source", work.source)  # a recording checks nothing
        else:
            # The base class's method, because the documents' `encode` takes other masks.
            memory = EncoderDecoderModel.encode(model, work.source, mask)
            if not work.shares_memory and work.copies > 1:
                memory = memory.repeat_interleave(work.copies, 0)
                mask = None if mask is None else mask.repeat_interleave(work.copies, 0)
    if execution.recordings is None:
        yield _plain_runner(model, work, execution.kernels, memory, mask)
        return
    read = work.source if execution.records_source else memory
    sizes = (0, 0) if read is None else read.shape[:2]
    with execution.recordings.borrow(Shape(work.rows, work.capacity, *sizes), execution.kernels) as recording:
        source = work.source if execution.records_source else None
        runner = ReplayedStepRunner if isinstance(recording, ReplayedRecording) else RecordedStepRunner
        yield runner(model, recording, work.rows, memory, mask, source=source)


def open_pool(model: TextModel, *, max_rows: int, max_tokens: int) -> PoolRunner:
    """Return a runner for the batching engine, with a new pool of `max_tokens` tokens."""
    rows = min(max_rows, max_tokens)
    pool = CachePool(model, max_rows=rows, max_tokens=max_tokens, kernels=choose_kernels(model))
    return PoolRunner(model, pool, is_recorded=should_record_pool(model))


def should_record_pool(model: TextModel) -> bool:
    """Return whether the engine's steps are recorded: on a GPU, unless a rule demands plain steps."""
    execution = choose_execution(model, ExpectedWork(rows=1, capacity=1))
    return next(model.parameters()).is_cuda and execution.recordings is not None


def _plain_runner(
    model: TextModel, work: ExpectedWork, kernels: KernelSet, memory: Tensor | None, mask: Tensor | None
) -> StepRunner:
    if isinstance(model, DecoderModel):
        cache = model.new_cache(work.rows, work.capacity)
    else:
        assert memory is not None
        cache = model.new_cache(work.rows, work.capacity, memory.shape[1], len(memory))
    cache.kernels = kernels
    return StepRunner(model, cache, memory, mask)


def record_steps(model: TextModel, *, compile: bool = False, cache_dtype: torch.dtype | None = None) -> None:
    """Use recorded steps for this model from now on. On a GPU this is the default, without `compile`.

    With `compile` the steps are also compiled. That takes half a minute for 6 layers and minutes for 30, once per
    shape, and at least as long again if the recording also encodes sources: on a GPU, and on a CPU if they are short.
    It pays off if many texts follow, most of all one text at a time. A step that cannot be compiled as a whole raises
    an error.

    `cache_dtype` is the dtype of cached keys and values, by default the model's. On a CPU float16 halves the memory of
    the cache and takes less time, with an error in the fourth digit; on a GPU a dtype other than the model's is slower.
    """
    if cache_dtype is not None and not cache_dtype.is_floating_point:
        raise ValueError(f"cache_dtype={cache_dtype}: expected a floating-point dtype, such as torch.float16")
    _RECORDINGS[model] = Recordings(model, compile=compile, cache_dtype=cache_dtype)


def use_compiled_kernels(model: TextModel) -> None:
    """Use the C++ kernels for this model's steps on a CPU, as quantized models do. Other models are not affected."""
    _WITH_COMPILED_KERNELS.add(model)
