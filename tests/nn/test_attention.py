"""Multi-head attention: heads, grouped heads, and errors that name the argument."""

import pytest
import torch

from glassformer.models import preset
from glassformer.nn import MultiHeadAttention
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
