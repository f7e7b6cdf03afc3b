"""The encoder-decoder model: tied tables, and decoding from an encoder's output."""

import pytest
import torch

from glassformer.models import build_model, preset
from oracle import random_model


@pytest.mark.parametrize("tie", ["none", "output", "embeddings", "all"])
def test_tied_embeddings_are_one_parameter(tie):
    model = build_model(preset("tiny-marian", tie=tie))
    source, target, output = (
        model.source_embeddings.tokens.weight,
        model.target_embeddings.tokens.weight,
        model.head.out_proj.weight,
    )
    assert (source is target) == (tie in ("embeddings", "all"))
    assert (output is target) == (tie in ("output", "all"))


def test_encoding_once_and_decoding_equals_one_forward_pass():
    model = random_model(preset("tiny-marian"))
    source, target = torch.randint(0, 40, (2, 5)), torch.randint(0, 40, (2, 4))
    source_mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    with torch.no_grad():
        hidden = model.decode(target, model.encode(source, source_mask), source_mask)
        torch.testing.assert_close(model.apply_head(hidden), model(source, target, source_mask))


def test_rows_of_a_cache_can_share_a_memory():
    model = random_model(preset("tiny-marian"))
    source, target = torch.randint(0, 40, (2, 5)), torch.randint(0, 40, (4, 3))
    cache = model.new_cache(4, 3, memory_length=5, memory_rows=2)
    with torch.no_grad():
        memory = model.encode(source)
        shared = torch.cat([model.decode(token, memory, cache=cache) for token in target.split(1, 1)], 1)
        torch.testing.assert_close(shared, model.decode(target, memory.repeat_interleave(2, 0)))
    with pytest.raises(ValueError, match=r"memory has shape \(2, 5, 16\): expected \(4, source length, 16\)"):
        model.decode(target, memory)
