"""`build_model` returns the class of the config's kind, with reproducible weights."""

import pytest
import torch

from glassformer.models import DecoderModel, EncoderDecoderModel, EncoderModel, build_model, preset
from glassformer.models.factory import build_on_meta
from glassformer.nn import Attend


def test_the_same_seed_builds_the_same_model():
    models = []
    for _ in range(2):
        torch.manual_seed(5)
        models.append(build_model(preset("tiny-bart-base")))
    for first, second in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("tiny-bert-base", EncoderModel), ("tiny-llama", DecoderModel), ("tiny-marian", EncoderDecoderModel)],
)
def test_the_config_decides_the_class_of_the_model(name, kind):
    model = build_model(preset(name), backend="math")
    assert type(model) is kind
    backends = {module.backend for module in model.modules() if isinstance(module, Attend)}
    assert backends == {"math"}


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-t5-small", "tiny-marian", "tiny-bert-base"])
def test_a_model_on_the_meta_device_has_shapes_alone_and_draws_nothing(name):
    state = torch.get_rng_state()
    found = build_on_meta(preset(name))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.is_meta for parameter in found.parameters())
    expected = {key: value.shape for key, value in build_model(preset(name)).named_parameters()}
    assert {key: value.shape for key, value in found.named_parameters()} == expected
