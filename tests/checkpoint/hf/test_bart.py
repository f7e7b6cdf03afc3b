"""The BART family: stored sinusoids, shared tables and config values."""

import shutil

import pytest
import torch
import transformers

from checkpoint import random_hf
from checkpoint.hf_comparison import change_tensors, make, open_theirs, same_numbers, save, tied
from glassformer.checkpoint import load_model
from glassformer.checkpoint.hf.bart import read_config, write_config
from glassformer.checkpoint.hf.values import UnsupportedModelError
from glassformer.pipelines.conversion import convert


@pytest.mark.parametrize("family", ["marian", "pegasus"])
def test_stored_sinusoids_are_accepted_and_other_tables_are_refused(family, tmp_path):
    drawn = tied(family)
    model = save(drawn, tmp_path, 0)
    sinusoids = model.model.encoder.embed_positions.weight.detach().clone()
    name = "model.encoder.embed_positions.weight"
    change_tensors(tmp_path, lambda tensors: tensors.update({name: sinusoids}))
    assert same_numbers(load_model(tmp_path), model, 0)
    for other in (sinusoids + 0.1, sinusoids[:-1]):
        change_tensors(tmp_path, lambda tensors, other=other: tensors.update({name: other.contiguous()}))
        with pytest.raises(ValueError, match=f"{name} differs from the sinusoidal positions that {family} computes"):
            load_model(tmp_path)


@pytest.mark.parametrize("family", ["bart", "marian", "pegasus"])
def test_embeddings_may_be_tied_without_the_output(family, tmp_path):
    drawn = tied(family)
    drawn.config.tie_word_embeddings = False
    if family == "marian":
        drawn.config.share_encoder_decoder_embeddings = True
        drawn.config.decoder_vocab_size = drawn.config.vocab_size
    model = random_hf.build(drawn, 0)
    sides = [model.model.encoder.embed_tokens, model.model.decoder.embed_tokens]
    with torch.no_grad():
        for side in sides:
            side.weight.copy_(model.model.shared.weight)
    model.save_pretrained(tmp_path / "new")
    assert same_numbers(load_model(tmp_path / "new"), model, 0)
    # HF before version 5 stored the shared table alone.
    shutil.copytree(tmp_path / "new", tmp_path / "old")
    names = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
    change_tensors(tmp_path / "old", lambda tensors: [tensors.pop(name) for name in names])
    ours = load_model(tmp_path / "old")
    assert ours.config.tie == "embeddings"
    assert same_numbers(ours, model, 0)
    convert(tmp_path / "old", tmp_path / "out", "hf")
    theirs, problems = open_theirs(tmp_path / "out", drawn.class_name)
    assert not any(problems.values())
    assert same_numbers(ours, theirs, 0)


SIZES = {
    "vocab_size": 40,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 2,
    **{f"{side}_attention_heads": 4 for side in ("encoder", "decoder")},
    **{f"{side}_ffn_dim": 24 for side in ("encoder", "decoder")},
}


@pytest.mark.parametrize("kind", ["bart", "marian", "pegasus"])
def test_a_written_config_is_read_back(kind):
    config = read_config(kind, {**SIZES, "scale_embedding": True}, frozenset({"final_logits_bias"}))
    assert (config.n_encoder_layers, config.n_decoder_layers, config.output_bias) == (1, 2, True)
    assert config.norm_placement == ("pre" if kind == "pegasus" else "post")
    assert read_config(kind, write_config(kind, config), frozenset({"final_logits_bias"})) == config


def test_different_sizes_of_encoder_and_decoder_are_refused():
    with pytest.raises(UnsupportedModelError, match="encoder and decoder of different ffn_dim: expected one"):
        read_config("bart", {**SIZES, "decoder_ffn_dim": 32}, frozenset())


def test_bart_without_a_bias_on_its_logits_is_read_and_written(tmp_path):
    """HF's buffer `final_logits_bias` is zero and missing from many checkpoints."""
    theirs = make("bart", 0)
    theirs.final_logits_bias.zero_()
    theirs.save_pretrained(tmp_path / "saved")
    change_tensors(tmp_path / "saved", lambda tensors: tensors.pop("final_logits_bias"))
    ours = convert(tmp_path / "saved", tmp_path / "again", "hf")
    assert not ours.config.output_bias
    assert same_numbers(ours, theirs, 0)
    again, _ = open_theirs(tmp_path / "again", "BartForConditionalGeneration")
    assert same_numbers(ours, again, 0)


def test_a_body_keeps_tables_that_differ_although_the_config_ties_them(tmp_path):
    config = transformers.BartConfig(
        vocab_size=40,
        d_model=8,
        encoder_layers=1,
        decoder_layers=1,
        encoder_ffn_dim=8,
        decoder_ffn_dim=8,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        max_position_embeddings=20,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    transformers.BartModel(config).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(
        path.read_text(encoding="utf-8").replace('"tie_word_embeddings": false', '"tie_word_embeddings": true'),
        encoding="utf-8",
    )
    theirs, _ = open_theirs(tmp_path, "BartModel")
    ours = load_model(tmp_path)
    assert ours.config.tie == "none"
    assert same_numbers(ours, theirs, 0)
