"""The key-value cache: rows can be reordered, dropped and truncated, and decoding continues with the remaining rows."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glassformer.models import preset
from glassformer.nn import KVCache
from glassformer.nn.cache import find_moved
from oracle import random_model


@settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 1000), rows=st.lists(st.integers(0, 2), min_size=1, max_size=3), keep=st.integers(1, 5))
def test_a_cache_can_be_reordered_shrunk_and_truncated(seed, rows, keep):
    torch.manual_seed(seed)
    model = random_model(preset("tiny-bart-base"))
    tokens, source = torch.randint(0, 40, (3, 6)), torch.randint(0, 40, (3, 4))
    mask = torch.ones(3, 6, dtype=torch.bool)
    mask[0, :2], mask[2, 1] = False, False
    rows = torch.tensor(rows)
    with torch.no_grad():
        memory = model.encode(source)
        cache = model.new_cache(3, 8, 4)
        model.decode(tokens, memory, target_mask=mask, cache=cache)
        cache.reorder(rows)
        cache.truncate(keep)
        new = torch.randint(0, 40, (len(rows), 2))
        continued = model.decode(new, memory[rows], cache=cache)
        whole_mask = torch.cat((mask[rows, :keep], torch.ones(len(rows), 2, dtype=torch.bool)), 1)
        whole = model.decode(torch.cat((tokens[rows, :keep], new), 1), memory[rows], target_mask=whole_mask)
    torch.testing.assert_close(continued, whole[:, keep:], atol=1e-9, rtol=1e-9)


def test_a_cache_truncated_to_zero_accepts_a_new_memory():
    model = random_model(preset("tiny-bart-base"))
    target = torch.randint(0, 40, (2, 3))
    first, second = (model.encode(torch.randint(0, 40, (2, 4))) for _ in range(2))
    cache = model.new_cache(2, 3, 4)
    with torch.no_grad():
        model.decode(target, first, cache=cache)
        cache.truncate(0)
        torch.testing.assert_close(model.decode(target, second, cache=cache), model.decode(target, second))


def small_cache(**changes):
    sizes = {"n_layers": 1, "batch_size": 2, "capacity": 4, "n_kv_heads": 1, "head_dim": 2} | changes
    return KVCache(**sizes)


def fill(cache, n_tokens, first):
    """Write tokens whose keys and values are first, first + 1, ... in every row and layer."""
    new = torch.arange(first, first + n_tokens, dtype=torch.float32)[None, None, :, None]
    new = new.expand(cache.batch_size, 1, n_tokens, 2)
    for layer in range(len(cache.keys)):
        cache.write(layer, new, -new)
    cache.advance(n_tokens)


def test_a_slot_returns_the_keys_and_values_of_all_tokens():
    cache = small_cache()
    fill(cache, 2, first=1)
    new = torch.full((2, 1, 1, 2), 3.0)
    keys, values = cache.layer(0).self_attn.update(new, -new)
    assert keys[1, 0, :, 0].tolist() == [1, 2, 3]
    assert values[0, 0, :, 1].tolist() == [-1, -2, -3]
    assert cache.length == 2, "only `advance` counts the new tokens"


def test_padding_of_new_tokens_is_remembered():
    cache = small_cache()
    assert cache.note_real(None, 1) is None
    fill(cache, 1, first=0)
    real = torch.tensor([[True], [False]])
    assert cache.note_real(real, 1).tolist() == [[True, True], [True, False]]


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda: small_cache(memory_rows=3), "memory_rows=3 does not divide batch_size=2"),
        (lambda: small_cache().check_room(5), "holds 0 tokens and 5 more were given: expected at most capacity=4"),
        (lambda: small_cache(memory_length=3).check_memory(2), "memory has 2 tokens: expected the cache's memory_len"),
    ],
)
def test_errors_name_the_size_that_does_not_fit(use, message):
    with pytest.raises(ValueError, match=message):
        use()


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_prompts_read_once_are_repeated_in_place(copies):
    cache = small_cache(n_layers=2, batch_size=7)
    addresses = [layer.data_ptr() for layer in (*cache.keys, *cache.values, cache.real)]
    prompts = cache.first_rows(2)
    prompts.note_real(torch.tensor([[False, True, True], [True, True, True]]), 3)
    new = torch.randn(2, 1, 3, 2)
    for layer in range(2):
        prompts.write(layer, new + layer, new - layer)
    prompts.advance(3)
    assert cache.length == 0
    cache.repeat_rows(prompts, copies)
    assert (cache.length, cache.has_padding) == (3, True)
    rows = torch.arange(2).repeat_interleave(copies)
    for layer in range(2):
        assert torch.equal(cache.keys[layer][: 2 * copies, :, :3], (new + layer)[rows])
        assert torch.equal(cache.values[layer][: 2 * copies, :, :3], (new - layer)[rows])
        assert not cache.keys[layer][max(2, 2 * copies) :].any()
        assert not cache.keys[layer][:, :, 3:].any()
    assert cache.real[:, 0].tolist() == [row >= copies for row in range(7)]
    assert cache.real[:, 1:].all()
    assert addresses == [layer.data_ptr() for layer in (*cache.keys, *cache.values, cache.real)]


def test_more_copies_than_rows_are_refused():
    cache = small_cache(batch_size=3)
    with pytest.raises(ValueError, match="2 rows with 2 copies each: expected at most the cache's 3"):
        cache.repeat_rows(cache.first_rows(2), 2)


def test_few_moved_rows_are_copied_in_place_unless_one_of_them_is_also_read():
    assert find_moved(torch.tensor([0, 5, 2, 3])).tolist() == [1]
    assert find_moved(torch.tensor([0, 1, 2])).tolist() == []
    assert find_moved(torch.tensor([0, 2, 1, 3])) is None  # each would overwrite the other
    assert find_moved(torch.tensor([4, 5, 6, 3])) is None  # as many as a copy of all
    cache = KVCache(n_layers=1, batch_size=4, capacity=3, n_kv_heads=1, head_dim=2)
    keys, before = cache.keys[0], cache.keys[0].normal_().clone()
    cache.length = 2
    cache.reorder(torch.tensor([0, 3]))
    assert cache.keys[0].data_ptr() == keys.data_ptr()
    assert torch.equal(cache.keys[0][:, :, :2], before[[0, 3], :, :2])
