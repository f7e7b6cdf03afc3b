"""Compute something for many inputs, in batches of inputs of similar length, such as the scores of texts."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from torch import nn

from glassformer.progress import Step
from glassformer.runtime.cpu_workers import compute_batches, count_readers, limit_read_tokens

Result = TypeVar("Result")


def sort_into_batches(sizes: Sequence[int], batch_tokens: int) -> list[list[int]]:
    """Return the indices of `sizes` in batches, the largest sizes first.

    A batch, padded to its largest size, has at most `batch_tokens` tokens. A larger size is a batch alone.
    """
    waiting, batches = sorted(range(len(sizes)), key=lambda index: -sizes[index]), []
    while waiting:
        count = max(1, batch_tokens // max(sizes[waiting[0]], 1))
        batches.append(waiting[:count])
        waiting = waiting[count:]
    return batches


def compute_in_batches(
    sizes: Sequence[int],
    compute: Callable[[list[int]], Sequence[Result]],
    *,
    batch_tokens: int,
    workers: int,
    label: str,
) -> list[Result]:
    """Return one result for each input, in the order of `sizes`, the numbers of their tokens.

    `compute` gets the indices of the inputs of a batch, at most `batch_tokens` padded tokens, and returns a result for
    each. Several `workers` compute as many batches at a time (`cpu_workers.py`). `label` names the work in the progress
    display.
    """
    results: list[Any] = [None] * len(sizes)
    batches = sort_into_batches(sizes, batch_tokens)
    with Step(label, len(sizes)) as step:
        for chosen, found in zip(batches, compute_batches(compute, batches, workers), strict=True):
            for index, one in zip(chosen, found, strict=True):
                results[index] = one
            step.advance(len(chosen))
    return cast("list[Result]", results)


def read_in_batches(
    model: nn.Module,
    sizes: Sequence[int],
    compute: Callable[[list[int]], Sequence[Result]],
    *,
    batch_tokens: int,
    label: str,
) -> list[Result]:
    """Do what `compute_in_batches` does, for a `compute` that calls `model` once and generates nothing.

    On a CPU each thread computes separate batches, if there is enough work for all. Together they hold no more tokens
    at a time than one batch of `batch_tokens`.
    """
    workers = count_readers(model, sizes)
    limit = limit_read_tokens(batch_tokens, workers, sizes)
    return compute_in_batches(sizes, compute, batch_tokens=limit, workers=workers, label=label)
