"""The bias of recorded steps is that of the rules, and is made anew only if the rules change."""

import pytest
import torch

from glassformer.decoding.bias_buffer import BiasBuffer
from glassformer.decoding.generation_config import GenerationConfig
from glassformer.decoding.rules import Rules


def rules(**settings):
    return Rules([GenerationConfig(**settings)] * 2, end=2, vocab_size=8)


def test_the_buffer_follows_the_rules(monkeypatch):
    made, usual = [], Rules.bias_after
    monkeypatch.setattr(Rules, "bias_after", lambda self, n: made.append(n) or usual(self, n))
    buffer = BiasBuffer(8, torch.device("cpu"))
    address = buffer.numbers.data_ptr()
    for settings, n_written, expected in (
        ({}, 0, {}),
        ({"min_new_tokens": 2}, 0, {2: -torch.inf}),
        ({"min_new_tokens": 2}, 1, {2: -torch.inf}),
        ({"min_new_tokens": 2}, 2, {}),
        ({"logit_bias": {3: 1.5}}, 0, {3: 1.5}),
        ({"logit_bias": {3: 1.5}, "suppress_tokens": (4,)}, 0, {3: 1.5, 4: -torch.inf}),
        ({}, 0, {}),
    ):
        buffer.set(rules(**settings), n_written)
        assert {place: value for place, value in enumerate(buffer.numbers.tolist()) if value} == expected
    assert buffer.numbers.data_ptr() == address
    assert made == [0, 0, 2, 0, 0, 0]  # the third has the bias of the second


def test_a_failure_leaves_no_bias_that_seems_right(monkeypatch):
    buffer = BiasBuffer(8, torch.device("cpu"))
    buffer.set(rules(), 0)
    with monkeypatch.context() as patch:
        patch.setattr(Rules, "bias_after", lambda *_: pytest.fail("out of memory"))
        with pytest.raises(pytest.fail.Exception):
            buffer.set(rules(logit_bias={1: 1.0}), 0)
    buffer.set(rules(logit_bias={1: 1.0}), 0)
    assert buffer.numbers[1] == 1
