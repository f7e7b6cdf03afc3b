"""Pictures show the model's own positions."""

import numpy as np
import pytest
import torch

from glassformer.inspect.json_values import unpack
from glassformer.inspect.position_pictures import describe_positions
from glassformer.models import build_model, preset
from glassformer.nn import sinusoids


@pytest.mark.parametrize(
    ("name", "changes", "kind", "axis"),
    [
        ("tiny-transformer-base", {}, "sinusoidal", "position"),
        ("tiny-gpt2", {}, "learned", "position"),
        ("tiny-llama", {}, "rotary", "position"),
        ("tiny-t5-small", {}, "relative", "head"),
        ("tiny-umt5-small", {}, "relative", "head"),
        ("tiny-gpt2", {"positions": "alibi"}, "alibi", "head"),
        ("tiny-deberta-v3-base", {}, "disentangled", "range of distances"),
    ],
)
def test_every_kind_has_a_picture(name, changes, kind, axis):
    model = build_model(preset(name, **changes))
    with torch.no_grad():
        found = describe_positions(model)
    assert found["kind"] == kind
    assert found["axes"][0] == axis
    assert found["explanation"].count(".") == 2  # two sentences
    assert len(found["picture"]["shape"]) == 2


def test_numbers_are_those_of_the_formulas():
    model = build_model(preset("tiny-transformer-base"))
    picture = unpack(describe_positions(model)["picture"])
    np.testing.assert_allclose(picture, sinusoids(*picture.shape).numpy(), atol=1e-4)
    alibi = build_model(preset("tiny-gpt2", positions="alibi"))
    found = describe_positions(alibi)
    picture = unpack(found["picture"])
    slopes = np.array(alibi.decoder.score_bias.slopes)
    distances = np.abs(np.arange(picture.shape[1]) + found["first_column"])
    np.testing.assert_allclose(picture, -slopes[:, None] * distances, atol=1e-3)


def test_a_model_without_positions_has_no_picture():
    assert describe_positions(build_model(preset("tiny-gpt2", positions="none"))) is None
