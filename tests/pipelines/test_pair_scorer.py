"""Cross-encoders: one score for a pair of texts."""

import json

import pytest
import torch

from checkpoint.hf_models import small_bert
from glassformer.checkpoint.hf.values import UnsupportedModelError
from glassformer.pipelines.load import load
from glassformer.pipelines.pair_scorer import PairScorer, read_activation
from pipelines.hf_folders import save_tokenizer

AROUND, PAIR = "<s> $A </s>", "<s> $A </s> $B:1 </s>:1"


def save_cross_encoder(folder, *, n_labels=1, **values):
    theirs = small_bert("Bert", "ForSequenceClassification", num_labels=n_labels, type_vocab_size=2)
    theirs.save_pretrained(folder)
    save_tokenizer(folder, around=AROUND, pair=PAIR, chat=False)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | values), encoding="utf-8")
    return theirs


def test_scores_are_those_of_hf(tmp_path):
    theirs = save_cross_encoder(tmp_path)
    ours = load(tmp_path)
    assert isinstance(ours, PairScorer)
    pairs = [("the cat sat", "a dog"), ("a", "the mat on the mat")]
    expected = []
    for first, second in pairs:
        ids, types = ours.reader.tokenizer.encode_pair(first, second)
        with torch.no_grad():
            logits = theirs(torch.tensor([ids]), token_type_ids=torch.tensor([types])).logits
        expected.append(logits.sigmoid().item())
    assert ours.score_pairs(pairs) == pytest.approx(expected, abs=1e-5)
    assert ours.score_pairs(pairs[0]) == pytest.approx(expected[0], abs=1e-5)
    assert ours.score_pairs([]) == []
    lines = ["\t".join(pair) for pair in pairs]
    assert [float(line) for line in ours.run(lines)] == pytest.approx(expected, abs=1e-4)
    ranked = ours.rank("the cat sat", ["a dog", "on", "the mat"])
    assert [one.score for one in ranked] == sorted((one.score for one in ranked), reverse=True)
    assert {one.place for one in ranked} == {0, 1, 2}


def test_the_folder_names_the_activation(tmp_path):
    save_cross_encoder(tmp_path, sentence_transformers={"activation_fn": "torch.nn.modules.linear.Identity"})
    assert load(tmp_path).activation == "identity"
    old = {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}
    assert read_activation(old, tmp_path) == "identity"
    assert read_activation({}, tmp_path) == "sigmoid"
    settings = tmp_path / "config_sentence_transformers.json"
    settings.write_text(json.dumps({"activation_fn": "torch.nn.modules.linear.Identity"}), encoding="utf-8")
    assert read_activation({}, tmp_path) == "identity"
    settings.unlink()
    with pytest.raises(UnsupportedModelError, match=r"activation_fn='os.system', which is not supported: expected"):
        read_activation({"sentence_transformers": {"activation_fn": "os.system"}}, tmp_path)
