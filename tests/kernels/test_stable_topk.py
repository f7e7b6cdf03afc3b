"""The highest scores of each row come in descending order, and ties in the order of their tokens."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from glassformer.kernels.stable_topk import stable_topk


@given(rows=st.integers(1, 4), width=st.integers(1, 80), share=st.floats(0, 1), seed=st.integers(0, 2**32))
def test_stable_topk_orders_ties_by_the_lower_token(rows, width, share, seed):
    torch.manual_seed(seed)
    scores = torch.randint(-4, 4, (rows, width)).float()
    scores[torch.rand(rows, width) > 0.9] = -torch.inf
    count = 1 + int(share * (width - 1))
    values, tokens = stable_topk(scores, count)
    ordered = scores.sort(descending=True, stable=True)
    assert torch.equal(values, ordered.values[:, :count])
    is_possible = values > -torch.inf
    assert torch.equal(tokens[is_possible], ordered.indices[:, :count][is_possible])
