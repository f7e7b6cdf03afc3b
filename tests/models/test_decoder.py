"""The decoder-only model: a token depends on itself and earlier tokens only, with a cache and without."""

import torch

from glassformer.models import preset
from oracle import random_model


def test_a_token_changes_its_own_output_and_later_ones_only():
    model = random_model(preset("tiny-gpt2"))
    tokens = torch.randint(0, 39, (1, 6))
    changed = tokens.clone()
    changed[0, 2] += 1
    with torch.no_grad():
        differs = (model(tokens) != model(changed)).any(-1)[0]
    assert differs.tolist() == [False, False, True, True, True, True]


def test_forward_applies_the_head_to_the_hidden_states():
    model = random_model(preset("tiny-llama"))
    tokens = torch.randint(0, 40, (2, 5))
    with torch.no_grad():
        hidden = model.decode(tokens)
        assert hidden.shape == (2, 5, model.config.d_model)
        assert torch.equal(model(tokens), model.apply_head(hidden))


def test_a_new_cache_has_the_sizes_and_dtype_of_the_model():
    model = random_model(preset("tiny-llama"))
    cache = model.new_cache(3, 7)
    assert len(cache.keys) == model.config.n_decoder_layers
    assert cache.keys[0].shape == (3, model.config.kv_heads, 7, model.config.head_size)
    assert cache.keys[0].dtype == torch.float64
    assert (cache.length, cache.memory_length) == (0, 0)
