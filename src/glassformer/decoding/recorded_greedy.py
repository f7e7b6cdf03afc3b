"""Greedy search as recorded steps (CUDA graphs): each step reads the tokens that the previous one chose.

So several steps can be launched before Python has read the tokens of the first.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from glassformer.kernels.kernel_set import KernelSet
from glassformer.runtime.recorded_steps import MAX_STEPS_AHEAD, RecordedStepRunner, Recording
from glassformer.runtime.step_runner import StepRunner


class GreedyRunner:
    """Runs recorded greedy steps one after the other, each from the tokens that the previous one chose."""

    max_steps = MAX_STEPS_AHEAD
    """The most steps of one call of `run`."""

    def __init__(self, recording: Recording):
        device = recording.tokens.device
        self.bias = torch.zeros(recording.vocab_size, device=device)
        """(V,), added to the logits before the best token is chosen."""
        self._results = torch.zeros(MAX_STEPS_AHEAD, 2, recording.shape.rows, device=device)
        self._cache = recording.cache  # not the recording, which holds this object
        self._first = torch.zeros(1, dtype=torch.long, device=device)
        """The position of the cache after the first step of a call of `run`."""
        step = partial(
            _greedy_step,
            recording.kernels,
            recording.narrow_score,
            recording.tokens,
            self.bias,
            self._cache.position,
            self._first,
            self._results,
        )
        self._step = recording.record(step)

    def run(self, steps: int) -> Tensor:
        """Launch `steps` steps and return their results, (steps, 2, rows), which are valid until the next call.

        The two numbers of a row are the score of its best token and the token's id.
        """
        self._cache.check_room(steps)
        torch.add(self._cache.position, 1, out=self._first)
        for _ in range(steps):
            self._step()
            self._cache.count()
        return self._results[:steps]


def greedy_runner_for(runner: StepRunner, tokens: Tensor) -> GreedyRunner | None:
    """Return a `GreedyRunner` that continues from `tokens` (N, 1), or None if the runner cannot chain steps."""
    if not isinstance(runner, RecordedStepRunner) or not runner.can_chain_steps:
        return None
    recording = runner.recording
    recording.tokens[: len(tokens)] = tokens
    return recording.cached("greedy", lambda: GreedyRunner(recording))


def _greedy_step(
    kernels: KernelSet,
    score: Callable[[], Tensor],
    tokens: Tensor,
    bias: Tensor,
    position: Tensor,
    first: Tensor,
    results: Tensor,
) -> Tensor:
    """Choose the best token of each row, write it to `tokens`, which the next step reads, and return `tokens`.

    The scores of the best tokens and their ids are also written to `results[position - first]`, where `position` is
    that of the cache, which `score` increases by 1.
    """
    kernels.choose_token(score(), bias, tokens, position, first, results)
    return tokens
