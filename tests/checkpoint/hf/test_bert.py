"""The BERT family: heads by class name, position offsets and shared layers."""

import pytest
import torch
import transformers

from checkpoint.hf_comparison import open_theirs, same_numbers
from checkpoint.hf_models import small_bert
from glassformer.checkpoint import load_model
from glassformer.checkpoint.hf import FAMILIES
from glassformer.checkpoint.hf.folder import save_hf_folder
from glassformer.checkpoint.hf.values import UnsupportedModelError

SIZES = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 30,
}


def read(family, architecture="", **values):
    return FAMILIES[family].read_config({**SIZES, "architectures": [architecture], **values}, frozenset())


@pytest.mark.parametrize(
    ("architecture", "head", "n_labels"),
    [
        ("BertModel", "none", None),
        ("BertForMaskedLM", "language_model", None),
        ("BertForSequenceClassification", "sequence_class", 3),
        ("BertForTokenClassification", "token_class", 3),
        ("BertForQuestionAnswering", "span", None),
    ],
)
def test_the_class_name_chooses_the_head(architecture, head, n_labels):
    config = read("bert", architecture, id2label={"0": "a", "1": "b", "2": "c"})
    assert (config.head, config.n_labels) == (head, n_labels)
    again = FAMILIES["bert"].read_config(FAMILIES["bert"].write_config(config), frozenset())
    assert again == config


def test_an_unsupported_head_is_refused_by_its_class():
    with pytest.raises(UnsupportedModelError, match=r"architectures=\['BertForMultipleChoice'\], whose head is not"):
        read("bert", "BertForMultipleChoice")


def test_robertas_positions_start_after_its_padding_token():
    config = read("roberta", "RobertaModel", pad_token_id=1)
    assert (config.position_offset, config.max_len) == (2, 28)
    assert read("bert", "BertModel", pad_token_id=1).position_offset == 0


def test_albert_shares_its_layers_and_projects_its_embeddings():
    config = read("albert", "AlbertModel", embedding_size=16)
    assert config.share_layers
    assert config.embedding_width == 16
    assert read("electra", "ElectraModel", embedding_size=16).embedding_width is None


@pytest.mark.parametrize("family", ["albert", "electra"])
def test_an_absent_embedding_size_is_hfs_default(family):
    config = {"albert": transformers.AlbertConfig, "electra": transformers.ElectraConfig}[family]
    assert read(family).embedding_width == config().embedding_size == 128
    assert read("bert").embedding_width is None


@pytest.mark.parametrize("prefix", ["Roberta", "Electra"])
def test_the_head_keeps_gelu_over_layers_with_another_activation(prefix, tmp_path):
    theirs = small_bert(prefix, "ForMaskedLM", hidden_act="relu")
    theirs.save_pretrained(tmp_path / "saved")
    ours = load_model(tmp_path / "saved")
    assert (ours.config.activation, ours.config.head_activation) == ("relu", "gelu")
    assert same_numbers(ours, theirs, 0)
    save_hf_folder(tmp_path / "again", ours, values={"pad_token_id": 1})
    again, _ = open_theirs(tmp_path / "again", f"{prefix}ForMaskedLM")
    assert same_numbers(ours, again, 0)


def test_sinusoidal_positions_of_distilbert_are_read_and_written(tmp_path):
    sizes = {"vocab_size": 40, "dim": 16, "hidden_dim": 24, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 30}
    config = transformers.DistilBertConfig(**sizes, sinusoidal_pos_embds=True, pad_token_id=1)
    torch.manual_seed(0)
    theirs = transformers.DistilBertForMaskedLM(config).eval()
    theirs.save_pretrained(tmp_path / "saved")
    ours = load_model(tmp_path / "saved")
    assert same_numbers(ours, theirs, 0)
    save_hf_folder(tmp_path / "again", ours, values={"pad_token_id": 1})
    again, _ = open_theirs(tmp_path / "again", "DistilBertForMaskedLM")
    assert same_numbers(ours, again, 0)
