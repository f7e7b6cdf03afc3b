"""Weights that are read later. `tests/training/test_parallel.py` divides them among processes."""

import gc

import pytest
import torch

from glassformer.checkpoint import load_model, save_model
from glassformer.checkpoint import unread_weights as module
from glassformer.checkpoint.model_folder import read_now
from glassformer.checkpoint.unread_weights import reading_later, take_unread
from glassformer.models import build_model, preset


@pytest.fixture
def folder(tmp_path):
    save_model(tmp_path / "model", build_model(preset("tiny-llama")))
    return tmp_path / "model"


def test_a_model_has_shapes_until_its_weights_are_read(folder):
    whole = load_model(folder)
    with reading_later():
        model = load_model(folder)
    assert all(parameter.is_meta for parameter in model.parameters())
    assert model.n_parameters() == whole.n_parameters()
    read_now(model)
    tokens = torch.tensor([[1, 2, 3]])
    assert torch.equal(model(tokens), whole(tokens))
    assert take_unread(model) is None
    read_now(model)  # nothing is left to read


def test_weights_can_be_read_where_others_are_left(folder):
    with reading_later():
        model = load_model(folder)
        read_now(model)
        with reading_later(on=False):
            other = load_model(folder)
    assert not any(parameter.is_meta for one in (model, other) for parameter in one.parameters())


def test_a_reader_is_taken_once_and_goes_with_its_model(folder):
    with reading_later():
        model = load_model(folder)
    assert dict(take_unread(model)).keys() == dict(model.named_parameters()).keys()
    assert take_unread(model) is None
    with reading_later():
        model = load_model(folder)
    del model
    gc.collect()
    assert not len(module._UNREAD)
