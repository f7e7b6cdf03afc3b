"""The plain torch kernels: stable top-k, the end of the visible keys, and moving cache rows."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.kernels.kernel_set import KernelSet, find_key_end, stable_topk


@settings(max_examples=60, deadline=None)
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


def test_plain_torch_has_no_attention_kernel():
    q, k = torch.zeros(2, 4, 1, 16), torch.zeros(2, 4, 8, 16)
    assert not KernelSet().can_attend(q, k, k, torch.zeros(2, 1, 1, 8))
    with pytest.raises(NotImplementedError, match="torch kernels have no attention"):
        KernelSet().attend(q, k, k, torch.zeros(2, 1, 1, 8), torch.tensor([8]), 1.0)


def test_the_key_end_is_one_past_the_last_key_that_any_query_sees():
    allowed = torch.zeros(3, 2, 2, 5, dtype=torch.bool)
    allowed[0, 1, 0, 2] = allowed[0, 0, 1, 0] = True
    allowed[1, :, :, 4] = True
    assert find_key_end(allowed).tolist() == [3, 5, 0]
    assert find_key_end(allowed[:, :1, :1]).tolist() == [0, 5, 0]


def test_a_token_is_written_at_the_position_in_the_dtype_of_the_cache():
    keys, values = torch.zeros(2, 2, 1, 4, 3, dtype=torch.float16)
    k, v = torch.randn(2, 2, 1, 1, 3)
    KernelSet().write_token(k, v, keys, values, torch.tensor([2]))
    assert torch.equal(keys[:, :, 2], k[:, :, 0].half())
    assert torch.equal(values[:, :, 2], v[:, :, 0].half())
    assert not keys[:, :, [0, 1, 3]].any()


def test_moved_rows_keep_the_unfilled_part_of_the_cache():
    keys, values = torch.arange(24.0).view(3, 1, 4, 2), torch.arange(24.0).view(3, 1, 4, 2) + 100
    expected = keys.clone()
    expected[:2, :, :3] = keys[[2, 0], :, :3]
    KernelSet().move_rows(keys, values, torch.tensor([2, 0]), width=None, position=torch.tensor([3]), length=3)
    assert torch.equal(keys, expected)
    assert torch.equal(values, expected + 100)


def test_the_chosen_token_goes_to_the_next_step_and_to_its_slot_of_the_results():
    scores, bias = torch.tensor([[1.0, 3.0, 2.0], [0.0, 1.0, torch.nan]]), torch.tensor([0.0, -9.0, 0.0])
    tokens, results = torch.zeros(2, 1, dtype=torch.long), torch.zeros(2, 2, 2)
    KernelSet().choose_token(scores, bias, tokens, torch.tensor([1]), results)
    assert tokens.tolist() == [[2], [2]], "NaN counts as the highest score"
    assert results[0].eq(0).all()
    assert results[1, 0, 0] == 2.0
    assert results[1, 0, 1].isnan()
    assert results[1, 1].tolist() == [2, 2]
