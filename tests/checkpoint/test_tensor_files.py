"""Safetensors files are read one tensor at a time."""

import pytest
import torch
from safetensors.torch import save_file

from glassformer.checkpoint.safe_files import CorruptFolderError
from glassformer.checkpoint.tensor_files import SafeTensors


def test_stored_tensors_are_read_one_at_a_time_and_compared_by_their_bytes(tmp_path):
    stored = {"a": torch.arange(6.0).view(2, 3).bfloat16(), "b": torch.arange(6.0).view(2, 3).bfloat16()}
    stored |= {"c": torch.arange(6.0).view(2, 3), "empty": torch.empty(0, 3), "ids": torch.arange(3)}
    stored |= {"zeros": torch.zeros(3).half(), "other zeros": torch.zeros(3).bfloat16()}
    save_file(stored, tmp_path / "x.safetensors")
    tensors = SafeTensors([tmp_path / "x.safetensors"])
    assert {*tensors.keys()} == {*stored}
    for name in ("a", "c", "empty"):
        assert torch.equal(tensors[name], stored[name])
        assert tensors[name].dtype == stored[name].dtype
    assert tensors.stored_as("a") == "BF16"
    assert tensors.have_equal_bytes("a", "b")
    assert not tensors.have_equal_bytes("a", "c")
    assert not tensors.have_equal_bytes("zeros", "other zeros"), "the number formats differ"
    with pytest.raises(ValueError, match="stores ids as I64: expected one of F64, F32, F16, BF16"):
        tensors["ids"]
    save_file({"a": torch.zeros(1)}, tmp_path / "y.safetensors")
    with pytest.raises(CorruptFolderError, match="holds a a second time"):
        SafeTensors([tmp_path / "x.safetensors", tmp_path / "y.safetensors"])
