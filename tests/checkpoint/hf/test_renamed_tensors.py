"""Tensors under the names of the original BERT."""

import pytest
import torch

from checkpoint.hf_comparison import InMemory, change_tensors, open_theirs, same_numbers
from checkpoint.hf_models import small_bert
from glassformer.checkpoint import CorruptFolderError, load_model
from glassformer.checkpoint.hf.renamed_tensors import with_current_names


def use_old_names(tensors):
    for name in [name for name in tensors if "LayerNorm" in name]:
        old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        tensors[old] = tensors.pop(name)


def test_the_names_of_the_original_bert_are_read(tmp_path):
    small_bert("Bert", "ForMaskedLM").save_pretrained(tmp_path)
    change_tensors(tmp_path, use_old_names)
    theirs, problems = open_theirs(tmp_path, "BertForMaskedLM")
    assert not any(problems.values())
    assert same_numbers(load_model(tmp_path), theirs, 0)


def test_current_names_are_left_alone():
    tensors = InMemory({"bert.embeddings.LayerNorm.weight": torch.ones(2), "gamma": torch.ones(1)})
    assert with_current_names(tensors) is tensors


def test_renamed_tensors_are_read_by_both_parts_of_the_name():
    tensors = with_current_names(InMemory({"a.LayerNorm.gamma": torch.ones(2), "b": torch.zeros(3)}))
    assert list(tensors.keys()) == ["a.LayerNorm.weight", "b"]
    assert tensors.shape("a.LayerNorm.weight") == (2,)
    assert tensors["b"].tolist() == [0, 0, 0]


def test_a_tensor_under_both_names_is_refused():
    tensors = InMemory({"LayerNorm.gamma": torch.ones(2), "LayerNorm.weight": torch.ones(2)})
    with pytest.raises(CorruptFolderError, match="stored twice, as LayerNorm"):
        with_current_names(tensors)
