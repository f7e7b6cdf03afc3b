"""The one place that decides how a model's decoding steps are computed, by the rules in `decision_rules.py`.

A recording also encodes the sources of an encoder-decoder on a GPU, and on a CPU if its steps are compiled and the
sources are short. Several samples of one source are an exception: each needs its own copy of the encoder output, so the
source is encoded before.

Packing (`packed_model.py`) and quantizing (`quantized_model.py`) make a changed copy of a model; the rules apply to it.
A model whose weights are laid out for it is recorded as its packed twin, which shares its memory.
"""

import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from glassformer.kernels.groupwise_matrix import CppGroupwiseMatrix
from glassformer.kernels.kernel_registry import kernels_for, was_library_built
from glassformer.kernels.kernel_set import KernelSet
from glassformer.kernels.triton_kernels import has_triton_kernels
from glassformer.models import DecoderModel, EncoderDecoderModel
from glassformer.nn.attention_backends import reads_unfilled
from glassformer.nn.expert_feedforward import ExpertFeedForward
from glassformer.nn.groupwise_linear import GroupwiseLinear
from glassformer.nn.quantized_linear import Int8Linear, TorchInt8Linear
from glassformer.runtime.cache_bounds import fits_float16
from glassformer.runtime.cache_pool import CachePool
from glassformer.runtime.compile_cache import check_cpp_compiler
from glassformer.runtime.decision_rules import KERNEL_RULES, STEP_RULES, Situation, decide
from glassformer.runtime.packed_model import has_fused_storage, packed_twin
from glassformer.runtime.pool_runner import PoolRunner
from glassformer.runtime.recorded_steps import RecordedStepRunner, Recording, Recordings, Shape, addresses_of
from glassformer.runtime.replayed_steps import (
    MAX_REPLAYED_BYTES,
    MAX_REPLAYED_ROWS,
    ReplayedRecording,
    ReplayedStepRunner,
)
from glassformer.runtime.step_runner import StepRunner, TextModel, modules_of

CompileChoice = Literal["auto", "on", "off"]
"""Whether decoding steps are compiled. "auto" is "off": compiling takes half a minute or more per batch shape."""
_RECORDINGS: "weakref.WeakKeyDictionary[TextModel, Recordings]" = weakref.WeakKeyDictionary()
_REPLAYED: "weakref.WeakKeyDictionary[TextModel, Recordings]" = weakref.WeakKeyDictionary()
_REPLAYED_LOCK = threading.Lock()
_TWINS: "weakref.WeakKeyDictionary[TextModel, tuple[tuple[int, ...], TextModel | None]]" = weakref.WeakKeyDictionary()
"""The packed twins of models, or None, with the addresses of the models' parameters."""
_POOLS: "weakref.WeakKeyDictionary[TextModel, PoolRunner]" = weakref.WeakKeyDictionary()
"""Runners that `keep_pool` has kept, at most one for each model."""
_POOLS_LOCK = threading.Lock()
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


class Execution(NamedTuple):
    """How decoding steps are computed: the decision of `choose_execution`."""

    kernels: KernelSet
    recordings: Recordings | None
    """The recordings of the model to replay; None for plain steps."""
    records_source: bool = False
    """Whether the recording also encodes the sources."""
    model: TextModel | None = None
    """The packed twin that computes in place of the model; None if the model itself computes."""
    addresses: tuple[int, ...] | None = None
    """What `addresses_of` returned for the model, if it was asked for them."""


def choose_execution(model: TextModel, work: ExpectedWork) -> Execution:
    """Return how the steps of this model are computed for this batch."""
    modules = modules_of(model)
    situation = situation_of(model, work, modules)
    kernels = choose_kernels(model, situation)
    situation = replace(situation, can_replay=_can_replay(model, work, kernels))
    steps = decide(STEP_RULES, situation).decision
    if steps == "plain":
        return Execution(kernels, None)
    if steps == "replayed":
        with _REPLAYED_LOCK:
            if model not in _REPLAYED:
                _REPLAYED[model] = Recordings(model, kind=ReplayedRecording, cache_dtype=_cache_dtype(model))
            return Execution(kernels, _REPLAYED[model])
    addresses = addresses_of(model, modules)
    twin = _twin_of(model, addresses)
    recordings = _RECORDINGS.get(model)
    if recordings is None or not recordings.is_for(twin or model):
        asked = recordings or Recordings(model)
        recordings = _RECORDINGS[model] = asked.of_another(twin or model)
    one_memory_each = work.source is not None and (work.copies == 1 or work.shares_memory)
    reads_source = one_memory_each and work.source is not None and recordings.should_read(work.source)
    return Execution(kernels, recordings, reads_source, twin, addresses)


def _can_replay(model: TextModel, work: ExpectedWork, kernels: KernelSet) -> bool:
    """Return whether a CPU can replay the steps from C++, and the batch is small enough."""
    parameter, config = next(model.parameters()), model.config
    if parameter.is_cuda:
        return False
    keys = parameter.new_empty(1, 1, 1, config.head_size)
    rounded = ReplayedRecording.round_up(Shape(work.rows, work.capacity), config.max_len)
    numbers = 2 * config.n_decoder_layers * config.kv_heads * config.head_size  # keys and values of a token
    cache_bytes = rounded.rows * rounded.capacity * numbers * parameter.element_size()
    is_small = work.rows <= MAX_REPLAYED_ROWS and cache_bytes <= MAX_REPLAYED_BYTES
    return is_small and not reads_unfilled(model, keys, kernels)


def _twin_of(model: TextModel, addresses: tuple[int, ...]) -> TextModel | None:
    """Return the packed twin of a model whose weights are laid out for one (`share_fused_storage`), else None.

    `addresses` are those of `addresses_of`.
    """
    known, weights = _TWINS.get(model), addresses[1:]
    if known is None or known[0] != weights:
        known = _TWINS[model] = weights, packed_twin(model) if has_fused_storage(model) else None
    return known[1]


def situation_of(
    model: TextModel, work: ExpectedWork | None = None, modules: Sequence[torch.nn.Module] | None = None
) -> Situation:
    """Return the facts about a model, and about a batch if one is given, that the rules need.

    `modules` are those of `modules_of`, if the caller knows them.
    """
    parameter, modules = next(model.parameters()), modules_of(model) if modules is None else modules
    device, kinds = parameter.device, {type(module) for module in modules}

    def has(*classes: type) -> bool:
        return any(issubclass(kind, classes) for kind in kinds)

    recordings = _RECORDINGS.get(model)
    return Situation(
        device=device.type,
        is_quantized=has(Int8Linear, TorchInt8Linear, GroupwiseLinear),
        builds_kernels=not has(TorchInt8Linear) and not (has(GroupwiseLinear) and any(map(_is_plain, modules))),
        has_built_kernels=device.type == "cpu" and was_library_built(),
        in_float32=parameter.dtype == torch.float32,
        runs_triton=device.type == "cuda" and has_triton_kernels(device),
        asks_for_kernels=model in _WITH_COMPILED_KERNELS,
        is_watched=any(module._forward_hooks or module._forward_pre_hooks for module in modules),
        under_autocast=torch.is_autocast_enabled(device.type),
        needs_attention=work is not None and work.needs_attention,
        has_experts=has(ExpertFeedForward),
        records="" if recordings is None else "compiled" if recordings.are_compiled else "recorded",
    )


def _is_plain(module: torch.nn.Module) -> bool:
    """Return whether a layer has group-wise quantized weights and computes in plain torch, for lack of kernels."""
    return isinstance(module, GroupwiseLinear) and not isinstance(module.matrix, CppGroupwiseMatrix)


def choose_kernels(model: TextModel, situation: Situation | None = None) -> KernelSet:
    """Return the kernels for the steps of this model on its device."""
    rule = decide(KERNEL_RULES, situation or situation_of(model))
    return kernels_for(next(model.parameters()).device, compiled=rule.decision == "c++")


@contextmanager
def open_runner(model: TextModel, work: ExpectedWork) -> Iterator[StepRunner]:
    """Return a context manager that yields a runner for this batch, valid inside the block (see `choose_execution`).

    The sources of an encoder-decoder are encoded here, or by the runner's first step if the recording does that.
    """
    execution = choose_execution(model, work)
    model = execution.model or model
    memory, mask = None, work.source_mask
    if isinstance(model, EncoderDecoderModel) and work.source is not None:
        if execution.records_source:
            model.source_embeddings.check("source", work.source)  # a recording checks nothing
        else:
            # The base class's method, because the documents' `encode` takes other masks.
            memory = EncoderDecoderModel.encode(model, work.source, mask, kernels=execution.kernels)
            if not work.shares_memory and work.copies > 1:
                memory = memory.repeat_interleave(work.copies, 0)
                mask = None if mask is None else mask.repeat_interleave(work.copies, 0)
    if execution.recordings is None:
        yield _plain_runner(model, work, execution.kernels, memory, mask)
        return
    read = work.source if execution.records_source else memory
    sizes = (0, 0) if read is None else read.shape[:2]
    shape = Shape(work.rows, work.capacity, *sizes)
    with execution.recordings.borrow(shape, execution.kernels, execution.addresses) as recording:
        source = work.source if execution.records_source else None
        runner = ReplayedStepRunner if isinstance(recording, ReplayedRecording) else RecordedStepRunner
        yield runner(model, recording, work.rows, memory, mask, source=source)


def open_pool(model: TextModel, *, max_rows: int, max_tokens: int) -> PoolRunner:
    """Return a runner for the batching engine, with a pool of `max_tokens` tokens: one that was kept, or a new one."""
    kernels = choose_kernels(model)
    sizes = {"max_rows": min(max_rows, max_tokens), "max_tokens": max_tokens}
    with _POOLS_LOCK:
        kept = _POOLS.get(model)
        fits = kept is not None and kept.pool.fits(model, **sizes, kernels=kernels)
        runner = _POOLS.pop(model) if fits else PoolRunner(model, CachePool(model, **sizes, kernels=kernels))
    update_pool(model, runner)
    return runner


def update_pool(model: TextModel, runner: PoolRunner) -> None:
    """Decide how the steps of a pool are computed, after parameters or hooks of its model may have changed."""
    runner.is_recorded = should_record_pool(model)
    runner.compute_with(_twin_of(model, addresses_of(model)) or model)


def should_record_pool(model: TextModel) -> bool:
    """Return whether the engine's steps are recorded: on a GPU, and where a CPU can replay steps of few rows.

    They are not if a rule demands plain steps.
    """
    work = ExpectedWork(rows=1, capacity=1)
    execution = choose_execution(model, work)
    can_record = next(model.parameters()).is_cuda or _can_replay(model, work, execution.kernels)
    return can_record and execution.recordings is not None


def keep_pool(model: TextModel, runner: PoolRunner) -> None:
    """Keep a runner that is no longer used for the next `open_pool` of its model, because of its recorded steps.

    It replaces the one that was kept before. A large pool is not kept.
    """
    runner.pool.reset()
    if runner.pool.nbytes <= Recording.MAX_BYTES:
        with _POOLS_LOCK:
            _POOLS[model] = runner


def _plain_runner(
    model: TextModel, work: ExpectedWork, kernels: KernelSet, memory: Tensor | None, mask: Tensor | None
) -> StepRunner:
    if isinstance(model, DecoderModel):
        cache = model.new_cache(work.rows, work.capacity)
    else:
        assert memory is not None
        cache = model.new_cache(work.rows, work.capacity, memory.shape[1], len(memory), _cache_dtype(model))
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


def compile_steps(model: TextModel) -> None:
    """Compile the decoding steps of this model (see `record_steps`).

    A quantized model then caches in float16, if its keys and values are surely small enough. Raises ValueError if torch
    finds no C++ compiler for a model on a CPU.
    """
    if next(model.parameters()).device.type == "cpu":
        check_cpp_compiler()
    is_half = situation_of(model).is_quantized and fits_float16(model)
    record_steps(model, compile=True, cache_dtype=torch.float16 if is_half else None)


def _cache_dtype(model: TextModel) -> torch.dtype | None:
    """Return the dtype of cached keys and values of steps on a CPU; None is that of the model.

    A quantized encoder-decoder caches in float16, if its keys and values are surely small enough: that takes half the
    time to read and move, and the rounding is small beside that of the activations. A decoder caches in its own dtype,
    as the engine's pool does.
    """
    is_on_cpu = next(model.parameters()).device.type == "cpu"
    is_half = is_on_cpu and not isinstance(model, DecoderModel) and situation_of(model).is_quantized
    return torch.float16 if is_half and fits_float16(model) else None


def check_compile(choice: CompileChoice) -> CompileChoice:
    """Return the choice. Raises ValueError if it is not one of `CompileChoice`."""
    if choice not in get_args(CompileChoice):
        raise ValueError(f"compile={choice!r}: expected one of {', '.join(get_args(CompileChoice))}")
    return choice


def use_compiled_kernels(model: TextModel) -> None:
    """Use the C++ kernels for this model's steps on a CPU, as quantized models do. Other models are not affected."""
    _WITH_COMPILED_KERNELS.add(model)
