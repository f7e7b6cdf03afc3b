"""A model that is divided among processes. `tests/training/parallel_program.py` lets two of them write texts."""

import pytest
import torch

from glassformer.models import build_model, preset
from glassformer.pipelines import split_model as module
from glassformer.pipelines.load import load
from glassformer.pipelines.split_model import ModelSplitter, join_for_inference, split_model
from glassformer.runtime.packed_model import has_fused_storage
from glassformer.training.processes import SharedError


@pytest.fixture
def closed(monkeypatch):
    """Leave the group of processes at the end of the test instead of the end of the program."""
    closers = []
    monkeypatch.setattr(module.atexit, "register", closers.append)
    yield
    for close in closers:
        close()


def test_one_process_has_all_heads(closed):
    model = build_model(preset("tiny-llama"))
    logits = model(torch.tensor([[1, 2, 3]]))
    n_processes = join_for_inference("tensor=1", torch.device("cpu"))
    split_model(model, n_processes, torch.device("cpu"))
    assert model.config.n_heads == preset("tiny-llama").n_heads
    assert torch.allclose(model(torch.tensor([[1, 2, 3]])), logits)


@pytest.mark.parametrize("parallel", ["tensor=2", "data=1,shard=1,tensor=1,pipeline=1"])
def test_a_layout_that_does_not_fit_is_refused(closed, parallel):
    with pytest.raises(SharedError, match=f"--parallel {parallel}"):
        join_for_inference(parallel, torch.device("cpu"))


def test_quantized_models_are_not_divided(tmp_path):
    with pytest.raises(ValueError, match="quantize='int8' with parallel='tensor=2': expected none, a divided"):
        load(tmp_path, parallel="tensor=2", quantize="int8")


def test_layers_are_divided_one_by_one_while_a_model_is_loaded(closed):
    model = build_model(preset("tiny-llama"))
    logits = model(torch.tensor([[1, 2, 3]]))
    splitter = ModelSplitter(join_for_inference("tensor=1", torch.device("cpu")), torch.device("cpu"))
    layer = model.decoder.layers[0]
    splitter.take(layer)
    assert hasattr(layer.self_attn.q_proj.weight, "to_local")
    assert not hasattr(model.decoder.layers[1].self_attn.q_proj.weight, "to_local")
    splitter.take(model.decoder)  # not a layer: nothing happens
    for other in model.decoder.layers[1:]:
        splitter.take(other)
    splitter.finish(model)
    assert torch.allclose(model(torch.tensor([[1, 2, 3]])), logits)


def test_a_model_with_biases_per_head_is_refused(closed):
    splitter = ModelSplitter(join_for_inference("tensor=1", torch.device("cpu")), torch.device("cpu"))
    with pytest.raises(SharedError, match="adds a bias to the scores of each head"):
        splitter.finish(build_model(preset("tiny-t5-small")))


def test_a_divided_model_has_no_fused_weights(closed):
    model = build_model(preset("tiny-llama"))
    split_model(model, join_for_inference("tensor=1", torch.device("cpu")), torch.device("cpu"))
    with torch.inference_mode():
        assert not has_fused_storage(model)
