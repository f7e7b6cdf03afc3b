"""Positions and masks of token ids: padding, packed documents and the longest row."""

import torch

from glassformer.models import build_model, preset
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
