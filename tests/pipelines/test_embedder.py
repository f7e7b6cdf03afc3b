"""The embedder: vectors that equal HF Transformers', and the pooling that a folder asks for."""

import json
import random

import pytest
import torch
from safetensors.torch import save_file

from checkpoint import hf_models
from checkpoint.hf.test_sentence_folder import write_modules
from glassformer.pipelines.embedder import Embedder
from glassformer.pipelines.load import load
from pipelines.hf_folders import save_tokenizer


def test_vectors_are_the_normalized_means_of_hfs_hidden_states(tmp_path):
    draw, _ = hf_models.ENCODERS["bert"]
    theirs = hf_models.make(draw(random.Random(1)), "BertModel", 1)
    theirs.save_pretrained(tmp_path)
    save_tokenizer(tmp_path, around="<s> $0 </s>")
    model = load(tmp_path)
    assert isinstance(model, Embedder)
    texts = ["the cat sat on the mat", "a dog", "", "cat " * 100]
    vectors = model.embed(texts)
    for text, vector in zip(texts, vectors, strict=True):
        ids = model.tokenizer.encode(text)
        ids = ids if len(ids) <= 28 else [*ids[:27], ids[-1]]
        with torch.no_grad():
            mean = theirs(torch.tensor([ids])).last_hidden_state[0].mean(0)
        torch.testing.assert_close(vector, mean / mean.norm(), atol=1e-5, rtol=0)
    torch.testing.assert_close(model.embed(texts, batch_tokens=1), vectors, atol=1e-6, rtol=0)
    assert json.loads(model.run(["a"])[0]) == pytest.approx(model.embed(["a"])[0].tolist(), abs=1e-5)


def test_the_head_of_a_masked_language_model_is_left_out(tmp_path):
    draw, _ = hf_models.ENCODERS["bert"]
    theirs = hf_models.make(draw(random.Random(2)), "BertForMaskedLM", 2)
    theirs.save_pretrained(tmp_path)
    save_tokenizer(tmp_path, around="<s> $0 </s>")
    model = load(tmp_path)
    ids = torch.tensor([model.tokenizer.encode("the cat sat")])
    with torch.no_grad():
        mean = theirs.bert(ids).last_hidden_state[0].mean(0)
    torch.testing.assert_close(model.embed(["the cat sat"])[0], mean / mean.norm(), atol=1e-5, rtol=0)


def test_pooling_and_limit_come_from_the_sentence_transformers_files(tmp_path):
    draw, _ = hf_models.ENCODERS["bert"]
    hf_models.make(draw(random.Random(1)), "BertModel", 1).save_pretrained(tmp_path)
    save_tokenizer(tmp_path, around="<s> $0 </s>")
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}), encoding="utf-8")
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 9}), encoding="utf-8")
    model = load(tmp_path)
    assert (model.model.config.pooling, model.model.config.unit_length) == ("first", True)
    assert model.max_len == 9


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_dense_layer_after_the_pooling_is_read_from_its_folder(dtype, tmp_path):
    draw, _ = hf_models.ENCODERS["bert"]
    theirs = hf_models.make(draw(random.Random(1)), "BertModel", 1)
    theirs.save_pretrained(tmp_path / "0_Transformer")
    save_tokenizer(tmp_path / "0_Transformer", around="<s> $0 </s>")
    values = {"in_features": theirs.config.hidden_size, "out_features": 5, "bias": True}
    write_modules(tmp_path, "Transformer", "Pooling", "Dense", dense=values, encoder="0_Transformer")
    dense = torch.nn.Linear(theirs.config.hidden_size, 5)
    tensors = {f"linear.{name}": value.detach() for name, value in dense.named_parameters()}
    save_file(tensors, tmp_path / "2_Dense" / "model.safetensors")
    model = load(tmp_path, dtype=dtype)
    with torch.no_grad():
        hidden = theirs(torch.tensor([model.tokenizer.encode("the cat")])).last_hidden_state[0].mean(0)
        expected = dense(hidden).tanh()
    near = 1e-5 if dtype == "float32" else 0.05
    torch.testing.assert_close(model.embed("the cat"), expected, atol=near, rtol=0)
    tensors["linear.other"] = tensors["linear.bias"].clone()
    save_file(tensors, tmp_path / "2_Dense" / "model.safetensors")
    with pytest.raises(ValueError, match=r"2_Dense holds linear.other, not supported: expected linear.weight"):
        load(tmp_path)
