"""A recorded prompt fills the cache as a plain one does. Graphs themselves need a GPU."""

from dataclasses import replace

import pytest
import torch

from glassformer.runtime import recorded_prompt, recorded_steps
from glassformer.runtime.cuda_graphs import CaptureError
from glassformer.runtime.recorded_prompt import RecordedPrompt
from glassformer.runtime.recorded_steps import RecordedStepRunner, Recording, Shape
from glassformer.runtime.step_functions import Steps
from glassformer.runtime.step_runner import StepRunner
from recording import DECODERS, make

PROMPTS = torch.tensor([[5, 6, 7, 8], [1, 1, 9, 4]])
MASK = torch.tensor([[True] * 4, [False, False, True, True]])


class Replayed:
    """A recorded function: it computes, but whatever Python notes in the cache is undone, as a graph runs no Python."""

    def __init__(self, compute, cache):
        self.compute, self.cache, self.n_calls = compute, cache, 0

    def __call__(self):
        self.n_calls += 1
        before = self.cache.length, self.cache.has_padding
        scores = self.compute()
        self.cache.length, self.cache.has_padding = before
        return scores


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("mask", [None, MASK], ids=["whole", "padded"])
def test_it_gives_the_logits_and_the_cache_of_a_plain_pass(name, mask):
    model = make(DECODERS[name])
    steps, made = Steps(model, compile=False), []
    with torch.inference_mode():
        recording = Recording(model, Shape(2, 20), steps)
        cache = recording.cache

        def record(compute):
            made.append(Replayed(compute, cache))
            return made[-1]

        prompt = RecordedPrompt(cache, steps.reader, record, 4, mask is not None)
        plain = StepRunner(model, model.new_cache(2, 20))
        for _ in range(2):  # a second prompt replaces the first
            cache.restart()
            plain.cache.truncate(0)
            torch.testing.assert_close(prompt(PROMPTS, mask), plain.step(PROMPTS, mask))
            assert (cache.length, cache.has_padding) == (4, mask is not None)
            cache.fix()
            fixed = StepRunner(model, cache)
            for token in (4, 5):
                tokens = torch.full((2, 1), token)
                torch.testing.assert_close(fixed.step(tokens), plain.step(tokens), atol=1e-5, rtol=1e-5)
    assert made[0].n_calls == 2


def test_a_pass_that_cannot_be_recorded_is_computed_plainly():
    model = make(DECODERS["learned positions"])
    steps = Steps(model, compile=False)
    calls = []

    def fail():
        calls.append(1)
        raise CaptureError("a reason")

    with torch.inference_mode():
        cache = Recording(model, Shape(2, 20), steps).cache
        prompt = RecordedPrompt(cache, steps.reader, lambda compute: fail, 4, False)
        for _ in range(2):
            cache.restart()
            right = StepRunner(model, model.new_cache(2, 20)).step(PROMPTS)
            torch.testing.assert_close(prompt(PROMPTS, None), right)
            assert cache.length == 4
    assert len(calls) == 1


def test_short_prompts_are_recorded_when_their_shape_comes_again(monkeypatch):
    model = make(replace(DECODERS["learned positions"], max_len=64))
    monkeypatch.setattr(recorded_steps, "MAX_PROMPT_TOKENS", 2 * 8)
    with torch.inference_mode():
        recording = Recording(model, Shape(2, 32), Steps(model, compile=False))
        recording._pool = object()  # as on a GPU
        monkeypatch.setattr(recording, "record", lambda compute, *buffers: compute)
        right = []
        for length in (4, 4, 4, 9, 9):
            tokens = torch.randint(3, 23, (2, length))
            scores = RecordedStepRunner(model, recording, 2).prefill(tokens)
            right.append(StepRunner(model, model.new_cache(2, 32)).step(tokens))
            torch.testing.assert_close(scores, right[-1])
    kept = [key for key in recording._cached if key[0] == "prompt"]
    assert kept == [("prompt", 4, False)]
    assert recorded_prompt.MAX_PROMPT_TOKENS > 16
