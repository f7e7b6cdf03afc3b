"""Equivalent forms of a model compute the same outputs."""

import pytest
import torch
from torch import nn

from glassformer.checkpoint import load_model
from glassformer.checkpoint.gguf_export import write_gguf
from glassformer.checkpoint.hf.equivalent_forms import (
    ADD_ZERO_TOKEN_TYPE,
    FOLD_EMBEDDING_SCALE,
    SINES_FIRST,
    TABULATE_SINUSOIDS,
)
from glassformer.checkpoint.hf.folder import save_hf_folder
from glassformer.models import build_model, preset


def scaled_model(name, **changes):
    """A model whose embedding scale, the root of 24, is no power of two, so that rounding errors would show."""
    model = build_model(preset(name, d_model=24, n_heads=2, n_kv_heads=None, scale_embeddings=True, **changes))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model.eval()


@torch.no_grad()
@pytest.mark.parametrize("name", ["tiny-llama", "tiny-gpt2"])
@pytest.mark.parametrize(
    ("changes", "tie"),
    [
        ({"tie": "output"}, "output"),
        ({"tie": "output", "norm": "mean_std"}, "output"),
        ({"tie": "output", "output_bias": True}, "output"),
        ({"tie": "output", "norm_placement": "post"}, "none"),  # no final norm to absorb the inverse factor
        ({"tie": "output", "head_transform": True}, "none"),
        ({"tie": "none"}, "none"),
    ],
)
def test_folding_the_embedding_scale_keeps_the_logits_and_the_tie(name, changes, tie):
    model, tokens = scaled_model(name, **changes), torch.randint(0, 10, (2, 7))
    config = FOLD_EMBEDDING_SCALE.config(model.config)
    assert config.tie == tie
    plain = build_model(config).eval()
    rewritten = FOLD_EMBEDDING_SCALE.parameters(model.config, dict(model.named_parameters()))
    assert rewritten.keys() == dict(plain.named_parameters()).keys()
    plain.load_state_dict(rewritten, strict=False)
    torch.testing.assert_close(plain(tokens), model(tokens), rtol=1e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("save", [write_gguf, save_hf_folder])
def test_a_shared_table_is_written_once(save, tmp_path):
    """Files once held a second copy of the table for the output."""
    model, tokens = scaled_model("tiny-llama", tie="output"), torch.randint(0, 10, (2, 7))
    how = {"numbers": "f32"} if save is write_gguf else {}
    save(tmp_path / "model", model, **how)
    loaded = load_model(tmp_path / "model")
    assert loaded.config.tie == "output"
    assert loaded.n_parameters() == model.n_parameters()
    torch.testing.assert_close(loaded(tokens), model(tokens), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_sines_first_keeps_the_logits():
    model = build_model(preset("tiny-transformer-base", d_model=24, n_heads=2)).eval()
    source, target = torch.randint(0, 10, (2, 7)), torch.randint(0, 10, (2, 5))
    config = SINES_FIRST.config(model.config)
    assert config.sinusoid_halves
    other = build_model(config).eval()
    other.load_state_dict(SINES_FIRST.parameters(model.config, dict(model.named_parameters())), strict=False)  # tied
    torch.testing.assert_close(other(source, target), model(source, target), rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("rewrite", [TABULATE_SINUSOIDS, ADD_ZERO_TOKEN_TYPE])
def test_added_tables_keep_the_outputs(rewrite):
    model = build_model(preset("tiny-bert-base", positions="sinusoidal", token_types=0)).eval()
    config = rewrite.config(model.config)
    assert config != model.config
    assert rewrite.config(config) == config
    other = build_model(config).eval()
    other.load_state_dict(rewrite.parameters(model.config, dict(model.named_parameters())), strict=False)
    tokens = torch.randint(0, 10, (2, 7))
    torch.testing.assert_close(other(tokens), model(tokens), rtol=1e-5, atol=1e-5)
