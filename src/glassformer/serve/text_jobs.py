"""Divide the texts of a request into jobs that take about as long as a step of an engine."""

import asyncio
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

from glassformer.serve.compute_thread import ComputeThread

MAX_TEXTS = 64
"""The most texts of a job, and of several that are joined."""
MAX_CHARACTERS, GPU_MAX_CHARACTERS = 8192, 131_072
"""The most characters of a job with several texts. all-MiniLM-L6-v2 reads 8192 in 0.4 s on one Xeon core."""


async def answer_in_jobs(
    compute: ComputeThread, kind: Hashable, model: Any, texts: Sequence[str], answer: Callable[[list[str]], list[Any]]
) -> list[Any]:
    """Call `answer` with parts of the texts, in jobs between the steps of the engines, and return all results.

    Jobs of one kind that wait at the same time are joined while they stay within the limits of one job.
    """
    is_cuda = next(model.parameters()).is_cuda
    parts = divide(texts, GPU_MAX_CHARACTERS if is_cuda else MAX_CHARACTERS)
    jobs = [compute.answer(kind, part, answer, share=share) for part, share in parts]
    try:
        return [result for job in jobs for result in await asyncio.wrap_future(job)]
    finally:
        for job in jobs:
            job.cancel()


def divide(texts: Sequence[str], max_characters: int) -> Iterator[tuple[list[str], float]]:
    """Yield parts of the texts, each with the share that it takes of what one job may hold.

    A part of several texts takes at most all of it. A single text may take more.
    """
    part, share = list[str](), 0.0
    for text in texts:
        more = max(1 / MAX_TEXTS, len(text) / max_characters)
        if part and share + more > 1:
            yield part, share
            part, share = [], 0.0
        part.append(text)
        share += more
    if part:
        yield part, share
