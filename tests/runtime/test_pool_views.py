"""Views of the pool: a model that writes through them computes what it computes without a cache."""

import pytest
import torch

from glassformer.runtime.cache_pool import CachePool
from glassformer.runtime.pool_views import FirstTokens, NextTokens, StepTokens
from recording import DECODERS, make


@pytest.mark.parametrize("name", DECODERS)
def test_first_next_and_single_tokens_equal_the_uncached_model(name):
    model = make(DECODERS[name])
    pool = CachePool(model, max_rows=3, max_tokens=60)
    texts = torch.randint(3, 23, (3, 9))
    whole = model(texts)
    rows = pool.take(3)
    with torch.inference_mode():
        found = model(texts[:, :4], cache=FirstTokens(pool, rows))
        assert torch.allclose(found[0], whole[0, :4])
        for row, length in zip(rows, (4, 2, 1), strict=True):
            row.length = length
        # Rows in another order, with different numbers of new tokens.
        more = torch.stack((texts[2, 1:4], texts[0, 4:7]))
        found = model(more, cache=NextTokens(pool, [rows[2], rows[0]], [3, 1]))
        assert torch.allclose(found[0], whole[2, 1:4])
        assert torch.allclose(found[1, :1], whole[0, 4:5])
        starts = torch.tensor([5, 2, 4])
        single = texts.gather(1, starts[:, None])
        for n_keys in (6, None):
            found = model(single, cache=StepTokens(pool, starts, n_keys=n_keys))[:, 0]
            assert torch.allclose(found, whole[torch.arange(3), starts])
        starts = torch.tensor([3, 3, 3])
        found = model(texts[:, 3:4], cache=StepTokens(pool, starts, n_keys=4, even_start=3))[:, 0]
        assert torch.allclose(found, whole[:, 3])


def test_padding_is_overwritten_or_not_written():
    model = make(DECODERS["alibi"])
    pool = CachePool(model, max_rows=2, max_tokens=8)
    rows = pool.take(2)
    with torch.inference_mode():
        model(torch.tensor([[5, 6, 7], [8, 0, 0]]), cache=FirstTokens(pool, rows))
        rows[0].length, rows[1].length = 3, 1
        model(torch.tensor([[5, 0], [6, 7]]), cache=NextTokens(pool, rows, [1, 2]))
    for block in (*pool.keys, *pool.values):
        assert block[0].any(-1).all()
        assert not block[1, :, 3:].any()


def test_rows_that_are_not_active_attend_to_nothing():
    model = make(DECODERS["rotary, grouped"])
    pool = CachePool(model, max_rows=2, max_tokens=8)
    rows = pool.take(2)
    for block in (*pool.keys, *pool.values):
        block[1, :, 1:] = torch.nan
    with torch.inference_mode():
        model(torch.tensor([[5], [5]]), cache=FirstTokens(pool, rows))
        view = StepTokens(pool, torch.tensor([1, 1]), torch.tensor([True, False]), n_keys=2)
        logits = model(torch.tensor([[6], [6]]), cache=view)
    assert torch.allclose(logits[0, 0], model(torch.tensor([[5, 6]]))[0, 1])
