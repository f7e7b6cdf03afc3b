"""Cached greedy decoding against the oracle, which computes everything anew at each step."""

import pytest
import torch

from glassformer import reference
from glassformer.decoding import continue_greedily, translate_greedily
from glassformer.models import preset
from oracle import random_model, twin

END = 0


@pytest.mark.parametrize("name", ["tiny-transformer-base", "tiny-t5-small", "tiny-bart-base", "tiny-marian"])
def test_translation_equals_the_oracles(name):
    model = random_model(preset(name))
    source = torch.randint(1, 40, (3, 6))
    answers = translate_greedily(model, source, begin=1, end=END, max_new=9)
    oracle = twin(model)
    for row, answer in zip(source.numpy(), answers, strict=True):
        expected = reference.greedy(reference.translates(oracle, row), [1], END, 9).tokens
        assert answer == [token for token in expected if token != END]


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-llama"])
def test_continuation_equals_the_oracles_and_left_padding_changes_nothing(name):
    model = random_model(preset(name))
    rows = [torch.randint(1, 40, (n,)).tolist() for n in (2, 5, 3)]
    tokens = torch.tensor([[0] * (5 - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (5 - len(row)) + [1] * len(row) for row in rows])
    together = continue_greedily(model, tokens, mask, end=END, max_new=8)
    oracle = twin(model)
    for row, answer in zip(rows, together, strict=True):
        expected = reference.greedy(reference.continues(oracle), row, END, 8).tokens
        assert answer == [token for token in expected if token != END]
        assert continue_greedily(model, torch.tensor([row]), end=END, max_new=8) == [answer]
