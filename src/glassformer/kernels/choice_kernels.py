"""Kernels for the choice of a token: the best of a vocabulary's scores, or the best few of them.

torch's own sort more than is asked for, or read the scores several times. As those of a step (`step_kernels.py`), these
are in Triton for a GPU and in C++ for a CPU; where there are none, torch's own take over.
"""

from typing import Any

import torch
from torch import Tensor

from glassformer.kernels import step_kernels
from glassformer.kernels.step_kernels import HAS_KERNELS, are_on, on_device

MAX_AT_ONCE = 1 << 14
"""Scores that one program of a GPU reads at once."""
MAX_FEW = 64
"""So many are still found one by one sooner than by sorting."""

if HAS_KERNELS:
    import triton
    import triton.language as tl

    @triton.jit  # type: ignore[untyped-decorator]
    def _choose(  # type: ignore[no-untyped-def]
        scores, bias, tokens, slot, told, s_n, t_k, t_c, vocab_size: tl.constexpr, block: tl.constexpr
    ):
        """One program for a row: its best token, and how good that is."""
        row = tl.program_id(0).to(tl.int64)
        lanes = tl.arange(0, block)
        best, chosen = tl.full([block], float("-inf"), tl.float32), lanes
        for first in range(0, vocab_size, block):  # each lane keeps its own best
            places = first + lanes
            is_there = places < vocab_size
            numbers = tl.load(scores + row * s_n + places, mask=is_there, other=float("-inf"))
            numbers += tl.load(bias + places, mask=is_there, other=0.0)
            is_better = (numbers > best) | ((numbers != numbers) & (best == best))
            best, chosen = tl.where(is_better, numbers, best), tl.where(is_better, places, chosen)
        is_broken = tl.max((best != best).to(tl.int32), 0) > 0
        most = tl.max(tl.where(best != best, float("-inf"), best), 0)
        is_best = tl.where(is_broken, best != best, best == most)
        place = tl.min(tl.where(is_best, chosen, vocab_size), 0)
        told += tl.load(slot) * t_k + row
        tl.store(told, tl.where(is_broken, float("nan"), most))
        tl.store(told + t_c, place)
        tl.store(tokens + row, place)

    @triton.jit  # type: ignore[untyped-decorator]
    def _choose_few(  # type: ignore[no-untyped-def]
        scores, bias, values, tokens, s_n, count: tl.constexpr, vocab_size: tl.constexpr, block: tl.constexpr
    ):
        """One program for a row: its best tokens one after the other, each the best of those behind the one before."""
        row = tl.program_id(0).to(tl.int64)
        places = tl.arange(0, block)
        is_there = places < vocab_size
        numbers = tl.load(scores + row * s_n + places, mask=is_there, other=float("-inf"))
        most = tl.max(numbers, 0)
        taken = most + tl.log(tl.sum(tl.exp(numbers - most), 0))
        is_broken = taken != taken
        logs = numbers - taken + tl.load(bias + places, mask=is_there, other=0.0)
        logs = tl.where(is_broken, 0.0, logs)
        best, chosen = float("inf"), -1
        for which in range(count):
            is_behind = ((logs < best) | ((logs == best) & (places > chosen))) & is_there
            best = tl.max(tl.where(is_behind, logs, float("-inf")), 0)
            chosen = tl.min(tl.where(is_behind & (logs == best), places, block), 0)
            tl.store(values + row * count + which, tl.where(is_broken, float("nan"), best))
            tl.store(tokens + row * count + which, chosen)


def can_choose(scores: Tensor) -> bool:
    """Whether a GPU's kernels take these scores of a vocabulary."""
    is_plain = scores.is_cuda and scores.dtype == torch.float32 and scores.stride(-1) == 1 and len(scores) > 0
    return is_plain and are_on(scores.device)


def choose_best(scores: Tensor, bias: Tensor, tokens: Tensor, slot: Tensor, told: Tensor) -> None:
    """The best of each row of scores (N, V) with the bias (V,): into `tokens` (N, 1), and its score and itself into
    `told` (steps, 2, N) at the slot (1,). A NaN is better than any."""
    rows, vocab_size = scores.shape
    block = min(triton.next_power_of_2(vocab_size), MAX_AT_ONCE)
    launch: Any = _choose[(rows,)]
    with on_device(scores.device):
        strides = scores.stride(0), *told.stride()[:2]
        launch(scores, bias, tokens, slot, told, *strides, vocab_size, block, num_warps=16 if block > 1 << 13 else 8)


def best_of(scores: Tensor) -> tuple[Tensor, Tensor]:
    """The highest of each row (N, V), and where it first stands. A NaN is higher than any."""
    if _are_for_cpu(scores):
        highest, places = step_kernels.on_cpu.best(scores)
        return highest, places
    found = scores.max(-1)
    return found.values, found.indices


def best_few(scores: Tensor, bias: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` highest log-probabilities of each row of scores (N, V), once the bias (V,) is added, and whose they
    are: (N, count) each, the highest first, of equal ones the lower token (see `few_highest`). Where a score is NaN, so
    are those of its row."""
    vocab_size = scores.shape[1]
    if count <= MAX_FEW and _are_for_cpu(scores):
        values, tokens = step_kernels.on_cpu.best_few(scores, bias, count)
        return values, tokens
    if can_choose(scores) and vocab_size <= MAX_AT_ONCE and count <= MAX_FEW:
        values = torch.empty(len(scores), count, device=scores.device)
        tokens = torch.empty(len(scores), count, dtype=torch.long, device=scores.device)
        launch: Any = _choose_few[(len(scores),)]
        with on_device(scores.device):
            block = triton.next_power_of_2(vocab_size)
            launch(scores, bias, values, tokens, scores.stride(0), count, vocab_size, block, num_warps=8)
        return values, tokens
    return few_highest(scores.log_softmax(-1) + bias, count)


def few_highest(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` highest of each row (N, V), and where they stand: the highest first, of equal ones the first.

    torch's `topk` has equal ones in any order. On a GPU they are put in order only where all of them are among the
    `count`: to find the first of more would mean to wait for the GPU, or to sort the vocabulary.
    """
    values, places = scores.topk(min(count + 1, scores.shape[1]))
    if not scores.is_cuda:
        are_equal = (values[:, 1:] == values[:, :-1]) & (values[:, 1:] > float("-inf"))
        if are_equal.any():
            values, places = scores.sort(descending=True, stable=True)
        return values[:, :count], places[:, :count]
    values, (places, order) = values[:, :count], places[:, :count].sort()
    values, order = values.gather(1, order).sort(descending=True, stable=True)
    return values, places.gather(1, order)


def _are_for_cpu(scores: Tensor) -> bool:
    """Whether the kernels of a CPU take these scores of a vocabulary."""
    is_plain = not scores.is_cuda and not scores.requires_grad and not torch.compiler.is_compiling()
    return is_plain and step_kernels.are_there(scores) and scores.numel() > 0
