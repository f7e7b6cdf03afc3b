"""The examples in the docstrings of building blocks are run. Those of `glassformer`'s names: `test_front_door.py`."""

import doctest
import importlib
import math

import pytest
import torch

from glassformer.nn.masks import Mask

NAMES = {"torch": torch, "math": math, "Mask": Mask}
EXAMPLES = {
    "nn.multi_head_attention": 4,
    "nn.attention_backends": 5,
    "nn.layers": 2,
    "text.tokenizer": 3,
    "checkpoint.hf.name_tables": 6,
    "decoding.engine": 7,
    "decoding.prompt_lookup": 5,
}


@pytest.mark.parametrize(("module", "number"), EXAMPLES.items())
def test_examples_are_correct(module, number):
    found = doctest.testmod(importlib.import_module(f"glassformer.{module}"), extraglobs=NAMES)
    assert found.attempted == number
    assert found.failed == 0
