"""`build_model` returns the class of the config's kind, with reproducible weights."""

import pytest
import torch

from glassformer.models import DecoderModel, EncoderDecoderModel, EncoderModel, build_model, preset
from glassformer.models.factory import build_on_meta, build_with_new_head
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


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("tiny-bert-base", {"head": "token_class", "n_labels": 3}),
        ("tiny-bert-base", {"head": "language_model", "tie": "output"}),
        ("tiny-gpt2", {"head": "sequence_class", "n_labels": 3, "pooling": "last"}),
        ("tiny-t5-small", {"head": "language_model"}),
        ("tiny-llama", {"head": "none"}),
    ],
)
def test_a_new_head_has_the_numbers_of_a_whole_model(name, head):
    config = preset(name)
    config = config.with_head(head.pop("head"), **head)
    torch.manual_seed(5)
    whole = build_model(config)
    after = torch.rand(3)
    torch.manual_seed(5)
    found = build_with_new_head(config)
    assert torch.equal(torch.rand(3), after)
    parameters = dict(found.named_parameters())
    assert parameters.keys() == dict(whole.named_parameters()).keys()
    for key, value in whole.named_parameters():
        if key.startswith("head."):
            assert torch.equal(parameters[key], value), key
        else:
            assert parameters[key].is_meta
            assert parameters[key].shape == value.shape
