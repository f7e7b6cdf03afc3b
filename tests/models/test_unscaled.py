"""A decoder without the factor on its token vectors gives the same logits, and shares what it shared."""

import pytest
import torch
from torch import nn

from glassformer.checkpoint import load_model
from glassformer.checkpoint.gguf_out import write_gguf
from glassformer.checkpoint.hf.folder import save_hf_folder
from glassformer.models import build_model, preset
from glassformer.models.unscaled import unscaled


def scaled_model(name, **changes):
    """A model whose factor, the root of 24, is no power of two: rounding shows."""
    model = build_model(preset(name, d_model=24, n_heads=2, n_kv_heads=None, scale_embeddings=True, **changes))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model.eval()


@torch.no_grad()
@pytest.mark.parametrize("name", ["tiny-llama", "tiny-gpt2"])
@pytest.mark.parametrize(
    ("changes", "stays_shared"),
    [
        ({"tie": "output"}, True),
        ({"tie": "output", "norm": "mean_std"}, True),
        ({"tie": "output", "output_bias": True}, True),
        ({"tie": "output", "norm_placement": "post"}, False),  # no norm after the last layer to take the factor back
        ({"tie": "output", "head_transform": True}, False),
        ({"tie": "none"}, False),
    ],
)
def test_the_logits_stay_and_a_shared_table_stays_shared(name, changes, stays_shared):
    model = scaled_model(name, **changes)
    plain, tokens = unscaled(model), torch.randint(0, 10, (2, 7))
    torch.testing.assert_close(plain(tokens), model(tokens), rtol=1e-5, atol=1e-5)
    is_shared = plain.head.out_proj.weight is plain.embeddings.tokens.weight
    assert is_shared == stays_shared
    assert (plain.n_parameters() == model.n_parameters()) == (stays_shared or changes["tie"] == "none")


@torch.no_grad()
@pytest.mark.parametrize("save", [write_gguf, save_hf_folder])
def test_a_shared_table_is_written_once(save, tmp_path):
    """Such a model once grew by its table: the files held a second copy of it, for the output."""
    model, tokens = scaled_model("tiny-llama", tie="output"), torch.randint(0, 10, (2, 7))
    how = {"numbers": "f32"} if save is write_gguf else {}
    save(tmp_path / "model", model, **how)
    loaded = load_model(tmp_path / "model")
    assert loaded.config.tie == "output"
    assert loaded.n_parameters() == model.n_parameters()
    torch.testing.assert_close(loaded(tokens), model(tokens), rtol=1e-5, atol=1e-5)
