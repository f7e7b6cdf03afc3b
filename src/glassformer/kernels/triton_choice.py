"""The choice of tokens on a GPU, in Triton: the best token of each row of scores, or the best few.

The functions with `@triton.jit` run on the GPU, as many parallel programs; the Python functions launch them.
"""

from typing import Any

import torch
from torch import Tensor

from glassformer.kernels.triton_launch import HAS_TRITON, early_launch, launches_early, on_device

MAX_BLOCK = 1 << 14
"""The most scores that one Triton program reads at once."""
SPLIT_CHOICE, PART_OF_CHOICE = 1 << 14, 1 << 11
"""Several programs choose a token together in larger vocabularies than this, each among this many tokens."""
MAX_SPLIT_ROWS = 64
"""With more rows than this, one program for each row keeps a GPU busy."""
DTYPES = (torch.bfloat16, torch.float16, torch.float32)

if HAS_TRITON:
    import triton
    import triton.language as tl

    @triton.jit  # type: ignore[untyped-decorator]
    def _choose_token(  # type: ignore[no-untyped-def]
        scores, bias, tokens, position, first, results, s_n, t_k, t_c, vocab_size: tl.constexpr, block: tl.constexpr,
        waits: tl.constexpr,
    ):  # fmt: skip
        """Write the token with the highest score + bias, and that score, for one batch row (one program each)."""
        if waits:
            tl.extra.cuda.gdc_launch_dependents()
            tl.extra.cuda.gdc_wait()
        row = tl.program_id(0).to(tl.int64)
        lanes = tl.arange(0, block)
        best, chosen = tl.full([block], float("-inf"), tl.float32), lanes
        for begin in range(0, vocab_size, block):  # each lane keeps its own maximum
            places = begin + lanes
            is_there = places < vocab_size
            numbers = tl.load(scores + row * s_n + places, mask=is_there, other=float("-inf")).to(tl.float32)
            numbers += tl.load(bias + places, mask=is_there, other=0.0)
            is_better = (numbers > best) | ((numbers != numbers) & (best == best))
            best, chosen = tl.where(is_better, numbers, best), tl.where(is_better, places, chosen)
        has_nan = tl.max((best != best).to(tl.int32), 0) > 0
        most = tl.max(tl.where(best != best, float("-inf"), best), 0)
        is_best = tl.where(has_nan, best != best, best == most)
        token = tl.min(tl.where(is_best, chosen, vocab_size), 0)
        results += (tl.load(position) - tl.load(first)) * t_k + row
        tl.store(results, tl.where(has_nan, float("nan"), most))
        tl.store(results + t_c, token)
        tl.store(tokens + row, token)

    @triton.jit  # type: ignore[untyped-decorator]
    def _find_best(  # type: ignore[no-untyped-def]
        scores, bias, values, places, s_n, vocab_size: tl.constexpr, block: tl.constexpr, waits: tl.constexpr
    ):
        """Write the highest score + bias of a block of one row (one program each) and its place, for `_take_best`.

        NaN counts as the highest score, and is written as NaN.
        """
        if waits:
            tl.extra.cuda.gdc_launch_dependents()
            tl.extra.cuda.gdc_wait()
        row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
        at = part * block + tl.arange(0, block)
        is_there = at < vocab_size
        numbers = tl.load(scores + row * s_n + at, mask=is_there, other=float("-inf")).to(tl.float32)
        numbers += tl.load(bias + at, mask=is_there, other=0.0)
        is_nan = numbers != numbers
        has_nan = tl.max(is_nan.to(tl.int32), 0) > 0
        most = tl.max(tl.where(is_nan, float("-inf"), numbers), 0)
        is_best = tl.where(has_nan, is_nan, numbers == most) & is_there
        place = row * tl.num_programs(1) + part
        tl.store(values + place, tl.where(has_nan, float("nan"), most))
        tl.store(places + place, tl.min(tl.where(is_best, at, vocab_size), 0))

    @triton.jit  # type: ignore[untyped-decorator]
    def _take_best(  # type: ignore[no-untyped-def]
        values, places, tokens, position, first, results, t_k, t_c, parts, block: tl.constexpr, waits: tl.constexpr
    ):
        """Write the best of what `_find_best` found for one row (one program each), as `_choose_token` does."""
        if waits:
            tl.extra.cuda.gdc_launch_dependents()
            tl.extra.cuda.gdc_wait()
        row, part = tl.program_id(0).to(tl.int64), tl.arange(0, block)
        is_there = part < parts
        best = tl.load(values + row * parts + part, mask=is_there, other=float("-inf"))
        is_nan = best != best
        has_nan = tl.max(is_nan.to(tl.int32), 0) > 0
        most = tl.max(tl.where(is_nan, float("-inf"), best), 0)
        is_best = tl.where(has_nan, is_nan, best == most) & is_there
        found = tl.load(places + row * parts + part, mask=is_there, other=0)
        token = tl.min(tl.where(is_best, found, 2147483647), 0)
        results += (tl.load(position) - tl.load(first)) * t_k + row
        tl.store(results, tl.where(has_nan, float("nan"), most))
        tl.store(results + t_c, token)
        tl.store(tokens + row, token)

    @triton.jit  # type: ignore[untyped-decorator]
    def _choose_tokens(  # type: ignore[no-untyped-def]
        scores, bias, values, tokens, s_n, count: tl.constexpr, vocab_size: tl.constexpr, block: tl.constexpr
    ):
        """Write the `count` tokens with the highest log-probability + bias, for one batch row (one program each).

        It repeats an argmax over the tokens that rank below the previous one.
        """
        row = tl.program_id(0).to(tl.int64)
        places = tl.arange(0, block)
        is_there = places < vocab_size
        numbers = tl.load(scores + row * s_n + places, mask=is_there, other=float("-inf"))
        most = tl.max(numbers, 0)
        taken = most + tl.log(tl.sum(tl.exp(numbers - most), 0))
        has_nan = taken != taken
        logs = numbers - taken + tl.load(bias + places, mask=is_there, other=0.0)
        logs = tl.where(has_nan, 0.0, logs)
        best, chosen = float("inf"), -1
        for which in range(count):
            is_behind = ((logs < best) | ((logs == best) & (places > chosen))) & is_there
            best = tl.max(tl.where(is_behind, logs, float("-inf")), 0)
            chosen = tl.min(tl.where(is_behind & (logs == best), places, block), 0)
            tl.store(values + row * count + which, tl.where(has_nan, float("nan"), best))
            tl.store(tokens + row * count + which, chosen)


def can_choose(scores: Tensor) -> bool:
    """Return whether the kernels can choose among these scores (N, V)."""
    return scores.dtype in DTYPES and scores.stride(-1) == 1 and len(scores) > 0


def choose_token(
    scores: Tensor, bias: Tensor, tokens: Tensor, position: Tensor, first: Tensor, results: Tensor
) -> None:
    """Choose the best token of each row, as `KernelSet.choose_token`."""
    rows, vocab_size = scores.shape
    if vocab_size > SPLIT_CHOICE and rows <= MAX_SPLIT_ROWS:
        _choose_in_parts(scores, bias, tokens, position, first, results)
        return
    block = min(triton.next_power_of_2(vocab_size), MAX_BLOCK)
    strides = scores.stride(0), *results.stride()[:2]
    warps = 16 if block > 1 << 13 else 8
    launch: Any = _choose_token[(rows,)]
    with on_device(scores.device):
        launch(
            scores, bias, tokens, position, first, results, *strides, vocab_size, block, launches_early(scores.device),
            num_warps=warps, **early_launch(scores.device),
        )  # fmt: skip


def _choose_in_parts(
    scores: Tensor, bias: Tensor, tokens: Tensor, position: Tensor, first: Tensor, results: Tensor
) -> None:
    """Choose tokens as `choose_token`, with several programs for each row and a second kernel that joins them."""
    rows, vocab_size = scores.shape
    parts = triton.cdiv(vocab_size, PART_OF_CHOICE)
    values = torch.empty(rows, parts, device=scores.device)
    places = torch.empty(rows, parts, dtype=torch.int32, device=scores.device)
    find: Any = _find_best[(rows, parts)]
    take: Any = _take_best[(rows,)]
    with on_device(scores.device):
        early = {"waits": launches_early(scores.device), **early_launch(scores.device)}
        find(scores, bias, values, places, scores.stride(0), vocab_size, PART_OF_CHOICE, num_warps=4, **early)
        block = triton.next_power_of_2(parts)
        take(
            values, places, tokens, position, first, results, *results.stride()[:2], parts, block, num_warps=1, **early
        )


def best_token(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return the best score of each row and its token, as `KernelSet.best_token`."""
    rows, vocab_size = scores.shape
    tokens = torch.empty(rows, 1, dtype=torch.long, device=scores.device)
    zero = torch.zeros(1, dtype=torch.long, device=scores.device)
    results = torch.empty(1, 2, rows, device=scores.device)
    choose_token(scores, torch.zeros(vocab_size, device=scores.device), tokens, zero, zero, results)
    return results[0, 0].to(scores.dtype), tokens[:, 0]


def can_choose_several(scores: Tensor) -> bool:
    """Return whether `best_tokens` supports these scores (N, V)."""
    return can_choose(scores) and scores.dtype == torch.float32 and scores.shape[1] <= MAX_BLOCK


def best_tokens(scores: Tensor, bias: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the best `count` tokens of each row, as `KernelSet.best_tokens`."""
    vocab_size = scores.shape[1]
    values = torch.empty(len(scores), count, device=scores.device)
    tokens = torch.empty(len(scores), count, dtype=torch.long, device=scores.device)
    launch: Any = _choose_tokens[(len(scores),)]
    with on_device(scores.device):
        block = triton.next_power_of_2(vocab_size)
        launch(scores, bias, values, tokens, scores.stride(0), count, vocab_size, block, num_warps=8)
    return values, tokens
