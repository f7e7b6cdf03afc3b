"""The highest scores of each row come in descending order, and ties in the order of their tokens."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from glassformer.kernels.stable_topk import stable_topk


@given(
    rows=st.lists(st.lists(st.sampled_from([0.0, 1.0, 2.0, float("-inf")]), min_size=5, max_size=5), min_size=1),
    count=st.integers(1, 5),
)
def test_ties_are_in_the_order_of_their_tokens(rows, count):
    values, tokens = stable_topk(torch.tensor(rows), count)
    for row, found, chosen in zip(rows, values.tolist(), tokens.tolist(), strict=True):
        right = sorted(range(5), key=lambda token: (-row[token], token))[:count]
        assert found == [row[token] for token in right]
        finite = [token for token in right if row[token] > float("-inf")]  # of forbidden tokens any may come
        assert chosen[: len(finite)] == finite
