"""Fixtures of random models in the folder format of HF Transformers."""

import random

import pytest

from checkpoint import hf_models
from pipelines.hf_folders import save_tokenizer


@pytest.fixture
def decoder(tmp_path):
    """A folder with a random Llama of HF Transformers, and that model."""
    draw, class_name = hf_models.DECODERS["llama"]
    theirs = hf_models.make(draw(random.Random(3)), class_name, 3)
    theirs.save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    return tmp_path, theirs
