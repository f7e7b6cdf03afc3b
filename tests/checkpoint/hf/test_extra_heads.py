"""Heads that our models lack are skipped with a note, and written back to HF."""

import json
import logging

import pytest
import torch
from safetensors.torch import load_file

from checkpoint.hf_comparison import open_theirs, same_numbers
from checkpoint.hf_models import small_bert
from glassformer.checkpoint import load_model
from glassformer.checkpoint.external_formats import read_external
from glassformer.checkpoint.hf.extra_heads import modules_of, read_extra_heads, skipped_heads_note, skipped_names
from glassformer.pipelines.conversion import convert

HEADS = [
    ("Bert", "ForPreTraining", ["cls.seq_relationship", "bert.pooler.dense"]),
    ("Bert", "ForNextSentencePrediction", ["cls.seq_relationship", "bert.pooler.dense"]),
    ("Bert", "Model", ["pooler.dense"]),
    ("Albert", "ForPreTraining", ["sop_classifier.classifier", "albert.pooler"]),
    ("Electra", "ForPreTraining", ["discriminator_predictions.dense", "discriminator_predictions.dense_prediction"]),
]


@pytest.mark.parametrize(("prefix", "head", "modules"), HEADS)
def test_an_extra_head_is_skipped_and_written_back(prefix, head, modules, tmp_path, caplog):
    theirs = small_bert(prefix, head)
    theirs.save_pretrained(tmp_path / "saved")
    with caplog.at_level(logging.WARNING):
        ours = load_model(tmp_path / "saved")
    assert same_numbers(ours, theirs, 0)
    said = [name for name in modules if "pooler" not in name]
    assert all(name in caplog.text for name in said)
    assert bool(caplog.text) == bool(said)
    convert(tmp_path / "saved", tmp_path / "again", "hf")
    again, problems = open_theirs(tmp_path / "again", prefix + head)
    assert not any(problems.values())
    state = again.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in theirs.state_dict().items())
    assert modules_of(skipped_names(read_external(tmp_path / "again"), ours.config)) == sorted(modules)


def test_a_pooler_that_the_head_reads_is_no_extra_head(tmp_path):
    theirs = small_bert("Bert", "ForSequenceClassification")
    theirs.save_pretrained(tmp_path)
    assert read_extra_heads(read_external(tmp_path), load_model(tmp_path).config) is None


def test_the_names_of_the_classes_are_kept(tmp_path):
    theirs = small_bert("Bert", "ForSequenceClassification", num_labels=3)
    theirs.config.id2label, theirs.config.label2id = {0: "a", 1: "b", 2: "c"}, {"a": 0, "b": 1, "c": 2}
    theirs.save_pretrained(tmp_path / "saved")
    convert(tmp_path / "saved", tmp_path / "again", "hf")
    values = json.loads((tmp_path / "again" / "config.json").read_text(encoding="utf-8"))
    assert values["id2label"] == {"0": "a", "1": "b", "2": "c"}
    assert load_file(tmp_path / "again" / "model.safetensors").keys() == theirs.state_dict().keys()


def test_a_pooler_alone_is_not_worth_a_note():
    assert skipped_heads_note(["bert.pooler.dense.weight", "bert.pooler.dense.bias"]) is None
    assert skipped_heads_note(["cls.seq_relationship.weight", "pooler.dense.bias"]) == (
        "skipped cls.seq_relationship: a head that Glassformer does not have. convert --to hf keeps it"
    )


def test_a_head_that_is_written_back_keeps_its_number_of_classes(tmp_path):
    small_bert("Albert", "ForPreTraining", num_labels=3).save_pretrained(tmp_path / "saved")
    convert(tmp_path / "saved", tmp_path / "again", "hf")
    again, problems = open_theirs(tmp_path / "again", "AlbertForPreTraining")
    assert not any(problems.values())
    assert again.sop_classifier.classifier.weight.shape[0] == 3
