"""`build_model` returns the class of the config's kind, with reproducible weights."""

import pytest
import torch

from glassformer.models import DecoderModel, EncoderDecoderModel, EncoderModel, build_model, preset
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
