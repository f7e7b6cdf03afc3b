"""Packed weights can be pickled for a CPU with the same instructions."""

import pickle

import pytest
import torch

from glassformer.kernels.cpp_kernels import CppKernels
from glassformer.kernels.groupwise_matrix import (
    CppGroupwiseMatrix,
    GroupwiseFormat,
    GroupwiseMatrix,
    GroupwiseRows,
    groupwise_matrix_class,
)


def packed_matrix():
    if groupwise_matrix_class() is GroupwiseMatrix:
        pytest.skip("our kernels do not run here")
    matrix = CppGroupwiseMatrix(5, 32, GroupwiseFormat(8, has_mins=False))
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(-128, 128, (5, 32), generator=generator).to(torch.int8)
    matrix.write_rows(0, GroupwiseRows(codes, torch.rand(5, 1, generator=generator)))
    return matrix


def test_unpickled_weights_compute_the_same():
    matrix, x = packed_matrix(), torch.randn(3, 32, generator=torch.Generator().manual_seed(1))
    again = pickle.loads(pickle.dumps(matrix))
    assert torch.equal(again.multiply(x), matrix.multiply(x))
    assert torch.equal(again.read_rows(torch.arange(5)), matrix.read_rows(torch.arange(5)))


def test_weights_of_a_cpu_with_other_instructions_are_refused(monkeypatch):
    monkeypatch.setattr(CppKernels, "instruction_set", lambda self: "other")
    pickled = pickle.dumps(packed_matrix())
    monkeypatch.undo()
    with pytest.raises(
        RuntimeError, match=r"were pickled on a CPU with other instructions: expected .* from its folder"
    ):
        pickle.loads(pickled)
