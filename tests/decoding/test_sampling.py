"""The worked examples of `decoding/sampling.py`."""

import doctest

import torch

from glassformer.decoding import sampling
from glassformer.decoding.generation_config import GenerationConfig

LOGITS = torch.tensor([[0.5, 0.25, 0.15, 0.1]]).log()


def test_the_examples_in_the_docstrings_are_true():
    found = doctest.testmod(sampling, extraglobs={"logits": LOGITS})
    assert found.attempted >= 7
    assert found.failed == 0


def test_every_sampling_setting_of_the_config_has_a_function():
    for name in sampling.STAGES:
        assert hasattr(GenerationConfig, name)
    assert set(sampling.STAGES) == {"temperature", "top_k", "top_p", "min_p", "typical_p"}
