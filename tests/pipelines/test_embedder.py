"""The embedder: vectors that equal HF Transformers', and the pooling that a folder asks for."""

import json
import random

import pytest
import torch

from checkpoint import hf_models
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
    assert model.model.config.pooling == "first"
    assert model.max_len == 9
