"""Disentangled positions: the buckets of HF's DeBERTa, and the score of each pair."""

import warnings

import pytest
import torch
from torch import nn

from glassformer.nn.disentangled_positions import DisentangledPositions, disentangled_bias


@pytest.mark.parametrize(("n_buckets", "max_distance"), [(256, 512), (8, 28), (5, 9), (4, 14)])
def test_buckets_are_hfs(n_buckets, max_distance):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the module uses torch.jit, which is deprecated
        from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position
    distance = torch.arange(-600, 601)
    expected = make_log_bucket_position(distance, n_buckets, max_distance).long() + n_buckets
    positions = DisentangledPositions(n_buckets, max_distance, 4, norm=nn.Identity())
    assert torch.equal(positions.row(distance), expected.clamp(0, 2 * n_buckets - 1))


def test_a_score_is_the_sum_of_two_products():
    torch.manual_seed(0)
    q, k = torch.randn(2, 2, 3, 5, 4)  # two of (B, H, T, D)
    table_q, table_k = torch.randn(2, 3, 6, 4)
    index = torch.randint(6, (2, 5, 5))
    found = disentangled_bias(q, k, table_q, table_k, index)
    for b, h, t, s in [(0, 0, 0, 0), (1, 2, 4, 1), (0, 1, 2, 3)]:
        row = index[b, t, s]
        expected = q[b, h, t] @ table_k[h, row] + k[b, h, s] @ table_q[h, row]
        torch.testing.assert_close(found[b, h, t, s], expected)
