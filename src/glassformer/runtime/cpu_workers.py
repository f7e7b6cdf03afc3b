"""Several batches at a time on a CPU, each computed by one thread.

A batch that all threads compute together makes them wait for each other after every operation, hundreds of times in a
decoding step. Threads with a batch each never wait, so they get more done, if there are batches enough. Where another
program keeps a core busy, all threads of a common batch wait for the one on that core: with batches of their own, two
threads were then two to three times as fast with a small encoder, and 1.04 to 1.24 times as fast on quiet cores.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, cast

import torch
from torch import nn

from glassformer.runtime.choose_runner import situation_of
from glassformer.runtime.step_runner import TextModel

MIN_BATCH_TOKENS = 1024
"""Batches are made smaller to occupy all threads, but not smaller than this many tokens."""
MIN_ROWS = 16
"""With fewer rows per batch, a step takes most of its time to read the weights, which each thread would read anew."""
BATCHES_PER_WORKER = 4
"""Batches are made smaller until each thread gets this many, so that all of them end at about the same time."""

Item = TypeVar("Item")
Result = TypeVar("Result")


def count_workers(model: TextModel, lengths: Sequence[int], copies: int, *, needs_attention: bool = False) -> int:
    """Return how many batches to compute at a time: one per thread of a CPU, or 1 if all threads share each batch.

    `lengths` are the lengths of the inputs in tokens, and `copies` is the number of beams or samples of each. There is
    one batch at a time if there is too little work for several, on a GPU, or if the steps cannot run in other threads:
    forward hooks and compiled steps belong to one thread, and so does autocast.
    """
    if next(model.parameters()).device.type != "cpu" or needs_attention:
        return 1
    # A worker needs at least MIN_ROWS rows, and one and a half of the smallest batches on average.
    rows, tokens = len(lengths) * copies, sum(lengths) * copies
    workers = min(torch.get_num_threads(), rows // MIN_ROWS, 2 * tokens // (3 * MIN_BATCH_TOKENS))
    return workers if workers > 1 and _runs_in_threads(model) else 1


def count_readers(model: nn.Module, lengths: Sequence[int]) -> int:
    """Return how many batches to compute at a time, as `count_workers`, where a batch is one call of the model."""
    if next(model.parameters()).device.type != "cpu":
        return 1
    workers = min(torch.get_num_threads(), len(lengths), 2 * sum(lengths) // (3 * MIN_BATCH_TOKENS))
    return workers if workers > 1 and _runs_in_threads(model) else 1


def _runs_in_threads(model: nn.Module) -> bool:
    situation = situation_of(cast("TextModel", model))  # which reads nothing that an encoder lacks
    return not (situation.is_watched or situation.under_autocast or situation.records)


def limit_batch_tokens(batch_tokens: int, workers: int, lengths: Sequence[int], copies: int) -> int:
    """Return the most tokens of a batch, `batch_tokens` or less, so that there are batches enough for all workers."""
    if workers == 1:
        return batch_tokens
    # All workers together hold at most twice the tokens of one batch, unless their batches are the smallest ones.
    share = min(sum(lengths) * copies // (BATCHES_PER_WORKER * workers), 2 * batch_tokens // workers)
    longest_rows = MIN_ROWS * max(lengths)
    return min(batch_tokens, max(share, MIN_BATCH_TOKENS, longest_rows))


def limit_read_tokens(batch_tokens: int, workers: int, lengths: Sequence[int]) -> int:
    """Return the most tokens of a batch for `count_readers`.

    All workers together hold at most `batch_tokens`, unless their batches are the smallest ones.
    """
    if workers == 1:
        return batch_tokens
    share = min(sum(lengths) // (BATCHES_PER_WORKER * workers), batch_tokens // workers)
    return min(batch_tokens, max(share, MIN_BATCH_TOKENS))


def compute_batches(compute: Callable[[Item], Result], batches: Iterable[Item], workers: int) -> Iterator[Result]:
    """Yield `compute(batch)` for each batch, in order. Several `workers` compute as many batches at a time.

    The first error, or an interrupt of the caller, ends the workers after their present batches.
    """
    if workers == 1:
        yield from map(compute, batches)
        return
    threads = torch.get_num_threads()

    def compute_alone(batch: Item) -> Result:
        with torch.inference_mode():  # each thread has its own mode
            return compute(batch)

    executor = ThreadPoolExecutor(workers, "glassformer-worker", initializer=torch.set_num_threads, initargs=(1,))
    try:
        for future in [executor.submit(compute_alone, batch) for batch in batches]:
            yield future.result()
    finally:
        executor.shutdown(wait=True, cancel_futures=True)
        torch.set_num_threads(threads)  # a worker's number becomes that of all new threads
