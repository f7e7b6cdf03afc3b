"""Heads: pooling ignores padding, and each head returns its shape."""

import pytest
import torch

from glassformer.models import build_model, preset
from glassformer.models.heads import DenseTransform, LanguageModelHead, SequenceClassHead, TokenClassHead, pool


def test_embeddings_of_equal_texts_do_not_depend_on_padding():
    model = build_model(preset("tiny-bert-base").with_head("embedding", pooling="mean")).eval()
    tokens = torch.randint(1, 40, (1, 5))
    longer = torch.cat((tokens, torch.zeros(1, 3, dtype=torch.long)), 1)
    mask = torch.tensor([[1, 1, 1, 1, 1, 0, 0, 0]])
    alone, padded = model(tokens), model(longer, mask)
    torch.testing.assert_close(alone, padded)
    assert alone.norm().item() == pytest.approx(1, abs=1e-6)


HIDDEN = torch.tensor([[[1.0], [2.0], [4.0]], [[8.0], [16.0], [32.0]]])  # (2, 3, 1)


@pytest.mark.parametrize(
    ("pooling", "left", "right", "none"),
    [
        ("first", [2, 16], [1, 8], [1, 8]),
        ("last", [4, 32], [2, 16], [4, 32]),
        ("mean", [3, 24], [1.5, 12], [7 / 3, 56 / 3]),
    ],
)
def test_pooling_ignores_padding_on_either_side(pooling, left, right, none):
    for real, expected in (([0, 1, 1], left), ([1, 1, 0], right)):
        real = torch.tensor([real] * 2, dtype=torch.bool)
        assert pool(HIDDEN, real, pooling)[:, 0].tolist() == expected
    assert pool(HIDDEN, None, pooling)[:, 0].tolist() == pytest.approx(none)


def test_a_language_model_head_transforms_then_scales_then_projects():
    transform = DenseTransform(4, 6, activation="relu", norm=torch.nn.LayerNorm(6))
    head = LanguageModelHead(6, 9, bias=True, scale=0.5, transform=transform)
    hidden = torch.randn(2, 3, 4)
    expected = head.out_proj(0.5 * transform.norm(transform.dense(hidden).relu()))
    torch.testing.assert_close(head(hidden), expected)


def test_class_heads_score_sequences_or_tokens():
    hidden, real = torch.randn(2, 3, 4), torch.tensor([[1, 1, 0], [1, 1, 1]], dtype=torch.bool)
    sequence = SequenceClassHead(4, 5, pooling="last", transform=None, dropout=0.0)
    torch.testing.assert_close(sequence(hidden, real)[0], sequence.out_proj(hidden[0, 1]))
    assert TokenClassHead(4, 5, dropout=0.0)(hidden).shape == (2, 3, 5)
