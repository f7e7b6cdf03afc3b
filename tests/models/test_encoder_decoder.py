"""The encoder-decoder model: tied tables, and decoding from an encoder's output."""

import pytest

from glassformer.models import build_model, preset


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
