"""The common form of models in other libraries' formats."""

import pytest
import torch

from glassformer.checkpoint.external_formats import read_external
from glassformer.checkpoint.gguf_export import write_gguf
from glassformer.checkpoint.hf.folder import save_hf_folder
from glassformer.models import preset
from oracle import random_model


@pytest.mark.parametrize("stored", ["hf", "gguf"])
def test_every_reader_gives_hf_names_and_shapes_without_reading_the_values(stored, tmp_path):
    model = random_model(preset("tiny-llama", d_model=32, d_ff=64), dtype=torch.float32)
    if stored == "hf":
        save_hf_folder(tmp_path / "m", model)
    else:
        pytest.importorskip("gguf")
        write_gguf(tmp_path / "m", model, numbers="f32")
    found = read_external(tmp_path / "m")
    assert found.config["model_type"] == "llama"
    names = set(found.tensors.keys())
    assert {"model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight"} <= names
    for name in names:
        assert found.tensors.shape(name) == tuple(found.tensors[name].shape)
        assert found.tensors.stored_as(name) == "F32"
    assert found.tokenizer_json is None
