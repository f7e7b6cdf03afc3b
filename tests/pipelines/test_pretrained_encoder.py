"""Pretrained encoders become the pipeline of their head."""

import torch

from checkpoint.hf_models import small_bert
from glassformer.pipelines.classifier import Classifier
from glassformer.pipelines.embedder import Embedder
from glassformer.pipelines.extractor import Extractor
from glassformer.pipelines.load import load
from glassformer.pipelines.pretrained_encoder import class_names
from glassformer.pipelines.pretrained_tagger import PretrainedTagger
from pipelines.hf_folders import save_tokenizer

PAIR = "<s> $A </s> $B:1 </s>:1"


def save_bert(folder, head, **settings):
    theirs = small_bert("Bert", head, type_vocab_size=2, **settings)
    theirs.save_pretrained(folder)
    save_tokenizer(folder, around="<s> $A </s>", pair=PAIR)
    return theirs


def test_a_classifier_gives_hfs_probabilities_and_names(tmp_path):
    names = {0: "bad", 1: "fine", 2: "good"}
    theirs = save_bert(tmp_path, "ForSequenceClassification", id2label=names)
    ours = load(tmp_path)
    assert isinstance(ours, Classifier)
    assert ours.labels == ["bad", "fine", "good"]
    ids = ours.reader.tokenizer.encode("the cat sat")
    with torch.no_grad():
        expected = theirs(torch.tensor([ids])).logits.softmax(-1)
    torch.testing.assert_close(ours.probabilities(["the cat sat"]), expected, atol=1e-5, rtol=0)
    assert ours.run(["the cat sat"]) == [names[int(expected.argmax())]]


def test_several_labels_at_once_are_named_by_the_problem_type(tmp_path):
    save_bert(tmp_path, "ForSequenceClassification", num_labels=3, problem_type="multi_label_classification")
    assert load(tmp_path).multi_label


def test_a_model_of_spans_answers_questions(tmp_path):
    save_bert(tmp_path, "ForQuestionAnswering")
    ours = load(tmp_path)
    assert isinstance(ours, Extractor)
    assert ours.answer("the cat", "a dog sat on the mat") in "a dog sat on the mat"


def test_a_model_of_token_classes_finds_entities(tmp_path):
    save_bert(tmp_path, "ForTokenClassification", num_labels=3)
    ours = load(tmp_path)
    assert isinstance(ours, PretrainedTagger)
    assert ours.tags == ["LABEL_0", "LABEL_1", "LABEL_2"]


def test_other_encoders_become_embedders(tmp_path):
    save_bert(tmp_path, "ForMaskedLM")
    assert isinstance(load(tmp_path), Embedder)


def test_classes_without_names_are_numbered():
    assert class_names({}, 2) == class_names({"id2label": {"0": "a"}}, 2) == ["LABEL_0", "LABEL_1"]
