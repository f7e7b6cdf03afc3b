"""Greedy search as recorded steps (CUDA graphs): each step reads the tokens that the previous one chose.

So several steps can be launched before Python has read the tokens of the first.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from glassformer.decoding.bias_buffer import BiasBuffer
from glassformer.kernels.kernel_set import KernelSet
from glassformer.runtime.recorded_steps import MAX_STEPS_AHEAD, RecordedStepRunner, Recording
from glassformer.runtime.step_runner import StepRunner


class GreedyRunner:
    """Runs recorded greedy steps one after the other, each from the tokens that the previous one chose."""

    max_steps = MAX_STEPS_AHEAD
    """The most steps of one call of `run`."""

    def __init__(self, recording: Recording):
        device = recording.tokens.device
        self.bias = BiasBuffer(recording.vocab_size, device)
        """A bias, added to the logits before the best token is chosen."""
        self._kernels, self._tokens = recording.kernels, recording.tokens
        self._results = torch.zeros(MAX_STEPS_AHEAD, 2, recording.shape.rows, device=device)
        self._cache = recording.cache  # not the recording, which holds this object
        self._first = torch.zeros(1, dtype=torch.long, device=device)
        """The position of the cache after the first step of a call of `run`."""
        step = partial(
            _greedy_step,
            recording.kernels,
            recording.narrow_score,
            recording.tokens,
            self.bias.numbers,
            self._cache.position,
            self._first,
            self._results,
        )
        self._step = recording.record(step)

    def start(self, scores: Tensor) -> Tensor:
        """Choose the first tokens from the logits (N, V) after the prompts, and return the results, (1, 2, N).

        The next step continues from these tokens. The results are those of `run`.
        """
        n = len(scores)
        results = self._results[:1, :, :n]
        self._kernels.choose_token(scores, self.bias.numbers, self._tokens[:n], self._first, self._first, results)
        return results

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


def greedy_runner_for(runner: StepRunner) -> GreedyRunner | None:
    """Return a `GreedyRunner` that makes the next steps of a runner, or None if that cannot chain steps."""
    if not isinstance(runner, RecordedStepRunner) or not runner.can_chain_steps:
        return None
    recording = runner.recording
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
