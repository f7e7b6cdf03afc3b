"""The key-value cache: rows can be reordered, dropped and truncated, and decoding continues from what is left."""

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glassformer.models import preset
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
