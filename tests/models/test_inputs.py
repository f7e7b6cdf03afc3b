"""Positions and masks of token ids: padding, packed documents and the longest row."""

import pytest
import torch

from glassformer.models import build_model, preset
from glassformer.models.inputs import check_segments, count_positions, prepare
from oracle import random_model


def test_packed_and_padded_documents_equal_separate_documents():
    model = random_model(preset("tiny-gpt2"))
    tokens = torch.randint(1, 40, (1, 8))
    segments = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]])
    mask = torch.tensor([[0, 1, 1, 1, 1, 0, 1, 0]], dtype=torch.bool)
    packed = model(tokens, mask, segments=segments)[0]
    for number in (0, 1):
        mine = mask[0] & (segments[0] == number)
        torch.testing.assert_close(packed[mine], model(tokens[:, mine])[0], atol=1e-9, rtol=1e-9)


def test_padding_after_a_row_of_max_len_tokens_does_not_change_outputs():
    model = build_model(preset("tiny-gpt2")).eval()
    tokens = torch.randint(3, 40, (2, 33))
    mask = torch.ones(2, 33, dtype=torch.bool)
    mask[:, 32] = False
    with torch.no_grad():
        torch.testing.assert_close(model(tokens, mask)[:, :32], model(tokens[:, :32]))


def test_positions_count_the_real_tokens_of_each_document():
    real = torch.tensor([[0, 1, 1, 1, 0, 1]], dtype=torch.bool)
    assert count_positions(real, None).tolist() == [[0, 0, 1, 2, 3, 3]]
    segments = torch.tensor([[0, 0, 0, 1, 1, 1]])
    assert count_positions(real, segments).tolist() == [[0, 0, 1, 0, 1, 1]]


def test_the_cache_shifts_the_positions_of_new_tokens():
    model = build_model(preset("tiny-gpt2")).eval()
    cache, tokens = model.new_cache(1, 8), torch.zeros(1, 3, dtype=torch.long)
    with torch.no_grad():
        model(tokens, cache=cache)
    inputs = prepare("tokens", tokens[:, :2], model.embeddings, model.config, causal=True, cache=cache)
    assert inputs.positions.tolist() == [[3, 4]]
    assert inputs.key_positions.tolist() == [[0, 1, 2, 3, 4]]
    assert inputs.mask.causal


def test_plain_positions_count_padding_too():
    model = build_model(preset("tiny-gpt2"))
    tokens, real = torch.zeros(1, 3, dtype=torch.long), torch.tensor([[False, True, True]])
    arguments = ("tokens", tokens, model.embeddings, model.config)
    for plain, expected in ((False, [[0, 0, 1]]), (True, [[0, 1, 2]])):
        inputs = prepare(*arguments, causal=True, real=real, plain_positions=plain)
        assert inputs.positions.tolist() == expected


def test_document_numbers_must_be_integers_that_never_decrease():
    check_segments(torch.tensor([[0, 0, 3]]))
    with pytest.raises(ValueError, match="segments decrease along a row"):
        check_segments(torch.tensor([[0, 0, 3], [0, 2, 1]]))
    with pytest.raises(TypeError, match=r"segments has dtype torch\.float32"):
        check_segments(torch.zeros(1, 3))
