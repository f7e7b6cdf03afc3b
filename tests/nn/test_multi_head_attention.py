"""Multi-head attention: heads, grouped heads, and errors that name the argument."""

import pytest
import torch

from glassformer.models import preset
from glassformer.nn import MultiHeadAttention
from glassformer.nn.multi_head_attention import fold_rows, merge_heads, split_heads, unfold_rows
from oracle import random_model


def test_grouped_heads_with_copied_weights_equal_full_heads():
    config = preset("tiny-llama")
    grouped, full = random_model(config), random_model(preset("tiny-llama", n_kv_heads=None))
    state = grouped.state_dict()
    for name, value in state.items():
        if ".k_proj." in name or ".v_proj." in name:
            heads = value.unflatten(0, (config.kv_heads, config.head_size))
            state[name] = heads.repeat_interleave(config.n_heads // config.kv_heads, 0).flatten(0, 1)
    full.load_state_dict(state)
    tokens = torch.randint(0, 40, (2, 9))
    torch.testing.assert_close(grouped(tokens), full(tokens), atol=1e-12, rtol=1e-12)


def test_attention_refuses_a_tensor_as_mask():
    attention = MultiHeadAttention(12, 4)
    with pytest.raises(TypeError, match=r"mask is a Tensor: expected a Mask, as in Mask\(causal=True\)"):
        attention(torch.zeros(2, 3, 12), mask=torch.ones(3, 3, dtype=torch.bool))
    with pytest.raises(TypeError, match=r"bias has dtype torch.bool"):
        attention(torch.zeros(2, 3, 12), bias=torch.ones(1, 1, 3, 3, dtype=torch.bool))


def test_heads_split_merge_fold_and_unfold_without_loss():
    x = torch.randn(4, 3, 6)
    heads = split_heads(x, 2)
    assert torch.equal(heads[1, 1, 2], x[1, 2, 3:])
    assert torch.equal(merge_heads(heads), x)
    folded = fold_rows(heads, 2)
    assert folded.shape == (2, 2, 6, 3)
    assert torch.equal(folded[1, 0], heads[2:, 0].flatten(0, 1)), "rows 2 and 3 share a memory"
    assert torch.equal(unfold_rows(folded, 4), heads)


def test_attention_is_the_projected_mean_of_the_values_if_all_scores_are_equal():
    attention = MultiHeadAttention(8, 2).eval()
    torch.nn.init.zeros_(attention.q_proj.weight)
    torch.nn.init.zeros_(attention.q_proj.bias)
    query, memory = torch.randn(1, 3, 8), torch.randn(1, 5, 8)
    expected = attention.out_proj(attention.v_proj(memory).mean(1, keepdim=True)).expand(1, 3, 8)
    torch.testing.assert_close(attention(query, memory), expected)


def test_rows_that_share_a_memory_equal_rows_with_copies_of_it():
    attention = MultiHeadAttention(8, 2).eval()
    query, memory = torch.randn(4, 3, 8), torch.randn(2, 5, 8)
    copied = attention(query, memory.repeat_interleave(2, 0))
    torch.testing.assert_close(attention(query, memory), copied)
