"""Initializing from a trained model: the weights that are taken over, and the folders that are refused."""

from dataclasses import replace

import pytest
import torch
import transformers

from glassformer.checkpoint import load_model
from glassformer.pipelines.load import load
from glassformer.tasks.classification import Classification, ClassificationConfig, LabeledData
from glassformer.tasks.denoising import Denoising, DenoisingConfig
from glassformer.tasks.masking import Masking, MaskingConfig
from glassformer.tasks.translation import PairData, Translation, TranslationConfig
from glassformer.tasks.warm_start import load_encoder, load_seq2seq
from tasks.pretraining_models import labeled, quick


def test_a_pretrained_body_is_taken_over_bit_by_bit(masked, tmp_path):
    body = load_model(masked[0])
    model, reader = load_encoder(masked[0], "token_class", {"n_labels": 3})
    own = dict(body.named_parameters())
    for name, parameter in model.named_parameters():
        assert name.startswith("head.") or torch.equal(parameter, own[name])
    assert reader.files["tokenizer.json"] == (masked[0] / "tokenizer.json").read_text(encoding="utf-8")
    files = labeled(tmp_path, 120, 1), labeled(tmp_path, 40, 2)
    config = ClassificationConfig(data=LabeledData(data=files[:1], valid=files[1:]), start_from=masked[0])
    config = quick(config, updates=30)
    scores = Classification(config).train(tmp_path / "all")
    assert scores["accuracy"] > 90
    # With adapters, only the adapted matrices and the head differ from the checkpoint.
    layers = ("v_proj", "out_proj", "up_proj", "down_proj")
    adapted = replace(config, train=replace(config.train, lora_rank=8, lora_layers=layers, lr=0.03, updates=40))
    assert Classification(adapted).train(tmp_path / "adapted")["accuracy"] > 90
    plain = load(tmp_path / "adapted").model
    moved = {name for name, p in plain.named_parameters() if name not in own or not torch.equal(p, own[name])}
    parts = ("self_attn.v_proj", "self_attn.out_proj", "ffn.up_proj", "ffn.down_proj")
    assert {name for name in moved if name.startswith("head.")} == {"head.out_proj.weight", "head.out_proj.bias"}
    assert {name for name in moved if not name.startswith("head.")} == {
        f"encoder.layers.0.{part}.weight" for part in parts
    }
    with pytest.raises(ValueError, match="lora_rank=8 without a model to adapt"):
        Classification(replace(adapted, start_from=None)).train(tmp_path / "none")


def test_a_translator_starts_from_a_denoising_model(denoised, corpus, tmp_path):
    folder = denoised[0]
    model, source, target = load_seq2seq(folder)
    assert source is target
    for name, parameter in load_model(folder).named_parameters():
        assert torch.equal(parameter, dict(model.named_parameters())[name])
    texts = corpus.data[0].read_text(encoding="utf-8").splitlines()[:60]
    (tmp_path / "a.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    (tmp_path / "b.txt").write_text("\n".join(" ".join(text.split()[::-1]) for text in texts) + "\n", encoding="utf-8")
    files = PairData(
        source=(tmp_path / "a.txt",),
        target=(tmp_path / "b.txt",),
        valid_source=(tmp_path / "a.txt",),
        valid_target=(tmp_path / "b.txt",),
    )
    config = quick(TranslationConfig(data=files, start_from=folder), updates=3)
    Translation(config).train(tmp_path / "translator")
    tool = load(tmp_path / "translator")
    assert tool.source_tokenizer.to_json() == source.to_json()
    assert tool.model.config == model.config
    assert len(tool.run(["the old dog barks ."])) == 1


def test_a_model_that_does_not_fit_is_refused_with_a_reason(masked, denoised, corpus, tmp_path):
    pairs = PairData(source=corpus.data, target=corpus.data, valid_source=corpus.valid, valid_target=corpus.valid)
    with pytest.raises(ValueError, match="is of kind 'encoder': expected 'encoder_decoder'"):
        Translation(quick(TranslationConfig(data=pairs, start_from=masked[0]))).train(tmp_path / "a")
    with pytest.raises(ValueError, match="is of kind 'encoder_decoder': expected 'encoder'"):
        Masking(quick(MaskingConfig(data=corpus, start_from=denoised[0]))).train(tmp_path / "b")
    with pytest.raises(FileNotFoundError, match=r"--from .*nowhere: no such folder"):
        Masking(quick(MaskingConfig(data=corpus, start_from=tmp_path / "nowhere"))).train(tmp_path / "c")
    other = {"spans": "infilling", "infilling": "spans"}[load(denoised[0]).noise]
    with pytest.raises(ValueError, match="expected a model that `glassformer train denoising` wrote"):
        Denoising(quick(DenoisingConfig(data=corpus, start_from=denoised[0], noise=other))).train(tmp_path / "d")
    sizes = {"vocab_size": 30, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "max_position_embeddings": 32}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    theirs = transformers.BartForConditionalGeneration(transformers.BartConfig(**sizes, **heads))
    theirs.save_pretrained(tmp_path / "bart")
    with pytest.raises(ValueError, match="was not trained by Glassformer, and its tokenizer cannot be used"):
        Translation(quick(TranslationConfig(data=pairs, start_from=tmp_path / "bart"))).train(tmp_path / "e")
