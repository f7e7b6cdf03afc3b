"""A cache with fixed shapes gives the results of a plain cache."""

import pytest
import torch
from typing_extensions import override

from glassformer.kernels.kernel_set import KernelSet, StepNumbers
from glassformer.runtime.fixed_cache import FixedCache
from recording import DECODERS, make

TOKENS = torch.tensor([[5, 6, 7, 8, 9], [10, 11, 12, 13, 14]])


def fixed_cache(model, rows=2, capacity=8):
    config = model.config
    return FixedCache(
        n_layers=config.n_decoder_layers,
        batch_size=rows,
        capacity=capacity,
        n_kv_heads=config.kv_heads,
        head_dim=config.head_size,
        dtype=torch.float64,
    )


def step(model, cache, tokens):
    logits = model(tokens, cache=cache)[:, -1]
    if cache.is_fixed:
        cache.count()
    return logits


@pytest.mark.parametrize("name", DECODERS)
@torch.inference_mode()
def test_steps_after_fixing_equal_one_pass_over_all_tokens(name):
    model = make(DECODERS[name])
    cache = fixed_cache(model)
    addresses = [keys.data_ptr() for keys in cache.keys]
    for _ in range(2):
        step(model, cache, TOKENS[:, :3])
        cache.fix()
        step(model, cache, TOKENS[:, 3:4])
        torch.testing.assert_close(step(model, cache, TOKENS[:, 4:]), model(TOKENS)[:, -1])
        assert cache.length == cache.position.item() == 5
        cache.restart()
    assert [keys.data_ptr() for keys in cache.keys] == addresses


@torch.inference_mode()
def test_discarded_steps_leave_position_length_and_mask_as_they_were():
    model = make(DECODERS["rotary, grouped"])
    cache = fixed_cache(model)
    step(model, cache, TOKENS[:, :3])
    cache.fix()
    before = cache.real.clone()
    with cache.discarding_steps():
        step(model, cache, TOKENS[:, 3:4])
        assert cache.length == cache.position.item() == 4
    assert cache.length == cache.position.item() == 3
    assert torch.equal(cache.real, before)


@pytest.mark.parametrize("within_groups", [True, False])
@torch.inference_mode()
def test_a_reordered_row_continues_the_row_it_copies(within_groups):
    model = make(DECODERS["rotary, grouped"])
    cache = fixed_cache(model)
    step(model, cache, TOKENS[:, :2])
    cache.fix()
    rows = torch.tensor([1, 1])
    if within_groups:
        cache.reorder_within(rows, width=2)
    else:
        cache.reorder(rows)
    expected = model(torch.tensor([[10, 11, 3], [10, 11, 4]]))[:, -1]
    torch.testing.assert_close(step(model, cache, torch.tensor([[3], [4]])), expected)


def test_clearing_removes_nan_from_keys_and_values():
    cache = fixed_cache(make(DECODERS["rotary, grouped"]))
    for store in (*cache.keys, *cache.values):
        store.fill_(float("nan"))
    cache.clear()
    assert not any(store.any() for store in (*cache.keys, *cache.values))


class Numbering(KernelSet):
    """Plain kernels that compute the position and the mask of a step."""

    n_calls = 0

    @override
    def can_number_step(self, real, dtype):
        return True

    @override
    def number_step(self, real, position, dtype, max_len=None):
        self.n_calls += 1
        count = real.sum(1, keepdim=True)
        real[:, position] = True
        added = torch.where(real, 0.0, -torch.inf).to(dtype)[:, None, None]
        return StepNumbers(count.clamp_max(max_len - 1), added, position + 1)


@pytest.mark.parametrize("name", DECODERS)
@torch.inference_mode()
def test_a_kernel_that_numbers_the_tokens_changes_nothing(name):
    model = make(DECODERS[name])
    mask = torch.tensor([[True, True, True], [False, False, True]])
    found = []
    for kernels in (KernelSet(), Numbering()):
        cache = fixed_cache(model)
        cache.counts_real_tokens, cache.kernels = True, kernels
        model(TOKENS[:, :3], mask, cache=cache)
        cache.fix()
        found.append(torch.cat([step(model, cache, TOKENS[:, place : place + 1]) for place in (3, 4)]))
    assert torch.allclose(*found)
    assert kernels.n_calls == (2 if name in ("learned positions", "rotary, grouped", "parallel", "experts") else 0)
