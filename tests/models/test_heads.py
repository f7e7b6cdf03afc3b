"""Heads: pooling ignores padding, and each head returns its shape."""

import pytest
import torch

from glassformer.models import build_model, preset


def test_embeddings_of_equal_texts_do_not_depend_on_padding():
    model = build_model(preset("tiny-bert-base").with_head("embedding", pooling="mean")).eval()
    tokens = torch.randint(1, 40, (1, 5))
    longer = torch.cat((tokens, torch.zeros(1, 3, dtype=torch.long)), 1)
    mask = torch.tensor([[1, 1, 1, 1, 1, 0, 0, 0]])
    alone, padded = model(tokens), model(longer, mask)
    torch.testing.assert_close(alone, padded)
    assert alone.norm().item() == pytest.approx(1, abs=1e-6)
