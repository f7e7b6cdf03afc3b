"""A checkpoint with one tensor for all experts of a layer loads as one with a tensor for each."""

import json

import pytest
import torch
from safetensors.torch import save_file

from checkpoint import random_hf
from checkpoint.hf_comparison import same_numbers
from glassformer.checkpoint import load_model
from glassformer.checkpoint.hf.fused_experts import MOST_EXPERTS, with_split_experts


class InMemory(dict):
    """Tensors by name, with the interface of a tensor file."""

    def shape(self, name):
        return tuple(self[name].shape)

    def stored_as(self, name):
        return "F32"


@pytest.mark.parametrize("family", ["mixtral", "qwen2_moe", "olmoe"])
def test_tensors_as_hf_holds_them_in_memory_load(family, tmp_path):
    seeds = (seed for seed in range(100) if random_hf.draw(family, seed).refusal is None)
    models = ((seed, random_hf.build(random_hf.draw(family, seed), seed)) for seed in seeds)
    seed, theirs = next(found for found in models if any("mlp.experts" in name for name in found[1].state_dict()))
    drawn = random_hf.draw(family, seed)
    values = {**theirs.config.to_dict(), "architectures": [drawn.class_name]}
    (tmp_path / "config.json").write_text(json.dumps(values), encoding="utf-8")
    state = {name: value.clone() for name, value in theirs.state_dict().items()}
    if theirs.config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    assert any(name.endswith("mlp.experts.gate_up_proj") for name in state)
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert same_numbers(load_model(tmp_path), theirs, seed)


def test_pieces_have_the_shapes_and_values_of_their_rows():
    whole, down = torch.arange(24.0).view(2, 4, 3), torch.arange(12.0).view(2, 3, 2)
    stored = InMemory(
        {
            "model.layers.0.mlp.experts.gate_up_proj": whole,
            "model.layers.0.mlp.experts.down_proj": down,
            "model.norm.weight": torch.ones(3),
        }
    )
    found = with_split_experts(stored, "qwen3_moe")
    assert len(list(found.keys())) == 7
    assert found.shape("model.layers.0.mlp.experts.1.up_proj.weight") == (2, 3)
    assert found.stored_as("model.layers.0.mlp.experts.1.up_proj.weight") == "F32"
    assert torch.equal(found["model.layers.0.mlp.experts.1.up_proj.weight"], whole[1, 2:])
    assert torch.equal(found["model.layers.0.mlp.experts.0.gate_proj.weight"], whole[0, :2])
    assert torch.equal(found["model.layers.0.mlp.experts.1.down_proj.weight"], down[1])
    assert torch.equal(found["model.norm.weight"], torch.ones(3))


def test_other_tensors_stay_as_they_are():
    stored = InMemory({"model.layers.0.mlp.experts.gate_up_proj": torch.ones(2, 4, 3)})
    assert with_split_experts(stored, "llama") is stored
    many = InMemory({"model.layers.0.mlp.experts.gate_up_proj": torch.ones(MOST_EXPERTS + 1, 1, 1)})
    assert with_split_experts(many, "mixtral") is many
    assert with_split_experts(stored, ["mixtral"]) is stored
