"""`build_model` returns the class of the config's kind, with reproducible weights."""

import torch

from glassformer.models import build_model, preset


def test_the_same_seed_builds_the_same_model():
    models = []
    for _ in range(2):
        torch.manual_seed(5)
        models.append(build_model(preset("tiny-bart-base")))
    for first, second in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(first, second)
