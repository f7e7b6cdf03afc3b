"""Pretrained models that several test files use. They are trained once in a session."""

import random
from functools import cache

import pytest

from glassformer.tasks.denoising import Denoising, DenoisingConfig
from glassformer.tasks.masking import Masking, MaskingConfig
from glassformer.tasks.pretraining import TextData
from tasks.pretraining_models import quick, sentence


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """Data options of 400 training and 40 validation texts, one or two sentences each."""
    folder, draw = tmp_path_factory.mktemp("texts"), random.Random(0)
    for name, count in (("train.txt", 400), ("valid.txt", 40)):
        texts = [" ".join(sentence(draw) for _ in range(draw.randint(1, 2))) for _ in range(count)]
        (folder / name).write_text("\n".join(texts) + "\n", encoding="utf-8")
    return TextData(data=(folder / "train.txt",), valid=(folder / "valid.txt",))


@pytest.fixture(scope="session")
def masked(corpus, tmp_path_factory):
    """The folder of an encoder that masking trained, and its scores."""
    folder = tmp_path_factory.mktemp("masked") / "model"
    return folder, Masking(quick(MaskingConfig(data=corpus, share=0.3), updates=150)).train(folder)


@pytest.fixture(scope="session")
def train_denoising(corpus, tmp_path_factory):
    """Return a function that trains a model with some noise once, and returns its folder and its scores."""

    @cache
    def train(noise):
        folder = tmp_path_factory.mktemp(noise) / "model"
        return folder, Denoising(quick(DenoisingConfig(data=corpus, noise=noise), updates=60)).train(folder)

    return train


@pytest.fixture(params=["spans", "infilling"])
def denoised(request, train_denoising):
    """The folder of an encoder-decoder that denoising trained, with each noise, and its scores."""
    return train_denoising(request.param)
