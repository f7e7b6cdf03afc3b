"""The plain torch kernels: writing and moving cache rows, and what they leave to other code."""

import pytest
import torch

from glassformer.kernels.kernel_set import KernelSet


def test_plain_torch_has_no_attention_kernel():
    q, k = torch.zeros(2, 4, 1, 16), torch.zeros(2, 4, 8, 16)
    assert not KernelSet().can_attend(q, k, k, torch.zeros(2, 1, 1, 8))
    with pytest.raises(NotImplementedError, match="torch kernels have no attention"):
        KernelSet().attend(q, k, k, torch.zeros(2, 1, 1, 8), torch.tensor([8]), 1.0)


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
    KernelSet().choose_token(scores, bias, tokens, torch.tensor([7]), torch.tensor([6]), results)
    assert tokens.tolist() == [[2], [2]], "NaN counts as the highest score"
    assert results[0].eq(0).all()
    assert results[1, 0, 0] == 2.0
    assert results[1, 0, 1].isnan()
    assert results[1, 1].tolist() == [2, 2]
