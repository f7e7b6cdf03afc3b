"""Group-wise quantized matrices: exact storage, exact products of rounded activations, and independent rows."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from glassformer.kernels import kernel_registry
from glassformer.kernels.cpp_library import KernelBuildError
from glassformer.kernels.groupwise_matrix import (
    CppGroupwiseMatrix,
    GroupwiseFormat,
    GroupwiseMatrix,
    GroupwiseRows,
    groupwise_matrix_class,
)

FORMATS = [
    GroupwiseFormat(bits, has_mins, dtype)
    for bits in (4, 8)
    for has_mins in (False, True)
    for dtype in (torch.float16, torch.float32)
]


@pytest.fixture(scope="module", params=[GroupwiseMatrix, CppGroupwiseMatrix], ids=["torch", "c++"])
def matrix_class(request):
    if request.param is CppGroupwiseMatrix and groupwise_matrix_class() is GroupwiseMatrix:
        pytest.skip("our kernels do not run here")
    return request.param


def random_rows(n_out, n_in, form, seed=0):
    generator = torch.Generator().manual_seed(seed)
    groups = -(-n_in // 32)
    least = -128 if form.bits == 8 else 0 if form.has_mins else -8
    codes = torch.randint(least, least + 2**form.bits, (n_out, groups * 32), generator=generator)
    numbers = torch.rand(2, n_out, groups, generator=generator).to(form.number_dtype).float()
    return GroupwiseRows(codes.to(torch.int8), 0.01 * 2**-form.bits + numbers[0] / 64, numbers[1] - 0.5)


def stored(rows, form):
    """Return the rows with scales and minimums as the format stores them."""
    scales, mins = (part.to(form.number_dtype).float() for part in (rows.scales, rows.mins))
    return GroupwiseRows(rows.codes, scales, mins if form.has_mins else None)


def filled(matrix_class, n_out, n_in, form, seed=0):
    """Return a matrix of random weights, written in two parts, and its weights as floats."""
    rows = stored(random_rows(n_out, n_in, form, seed), form)
    matrix = matrix_class(n_out, n_in, form)
    for first, last in ((n_out // 2, n_out), (0, n_out // 2)):
        mins = None if rows.mins is None else rows.mins[first:last]
        matrix.write_rows(first, GroupwiseRows(rows.codes[first:last], rows.scales[first:last], mins))
    return matrix, rows.dequantized()[:, :n_in]


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_rows_come_back_as_they_were_written(matrix_class, form):
    matrix, weight = filled(matrix_class, 37, 70, form)
    ids = torch.randint(0, 37, (2, 9))
    torch.testing.assert_close(matrix.read_rows(ids), weight[ids], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("form", FORMATS, ids=str)
@settings(max_examples=15, deadline=None)
@given(rows=st.integers(1, 40), n_in=st.integers(1, 200), n_out=st.integers(1, 70), seed=st.integers(0, 2**32))
def test_a_product_rounds_activations_by_group_and_nothing_else(matrix_class, form, rows, n_in, n_out, seed):
    matrix, weight = filled(matrix_class, n_out, n_in, form, seed)
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, n_in, generator=generator) * torch.rand(rows, 1, generator=generator) * 10
    bias = torch.randn(n_out, generator=generator)
    groups = torch.nn.functional.pad(x, (0, -n_in % 32)).view(rows, -1, 32)
    top = groups.abs().amax(2, keepdim=True)
    rounded = (groups * (torch.full_like(top, 16256) / top).nan_to_num(0)).round().double() * (top.double() / 16256)
    exact = rounded.flatten(1)[:, :n_in] @ weight.double().T + bias
    size = (rounded.flatten(1)[:, :n_in].abs() @ weight.double().abs().T).max().item()
    torch.testing.assert_close(matrix.multiply(x, bias).double(), exact, rtol=1e-5, atol=1e-6 * size + 1e-6)


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_a_row_has_the_same_result_alone_and_in_any_batch(matrix_class, form):
    matrix, _ = filled(matrix_class, 45, 160, form)
    x = torch.randn(70, 160)
    together = matrix.multiply(x)
    assert torch.equal(torch.cat([matrix.multiply(x[i : i + 1]) for i in range(70)]), together)
    for count in (2, 3, 4, 5, 33):
        assert torch.equal(matrix.multiply(x[-count:]), together[-count:])
    order = torch.randperm(70)
    assert torch.equal(matrix.multiply(x[order].view(2, 35, 160)).view(70, 45), together[order])


def test_the_result_does_not_depend_on_the_number_of_threads(matrix_class):
    matrix, _ = filled(matrix_class, 520, 512, GroupwiseFormat(4, True))
    usual = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found += [matrix.multiply(torch.ones(1, 512).cumsum(1)), matrix.multiply(torch.ones(9, 512).cumsum(1))]
    finally:
        torch.set_num_threads(usual)
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[3])


def test_nan_and_infinity_stay_in_their_own_row(matrix_class):
    matrix, _ = filled(matrix_class, 20, 64, GroupwiseFormat(4, True))
    x = torch.randn(9, 64)
    x[3, 40], x[7, 0] = torch.nan, torch.inf
    is_broken = ~torch.isfinite(matrix.multiply(x))
    assert is_broken[[3, 7]].all()
    assert is_broken.sum() == 2 * 20


def test_zeros_and_tiny_and_empty_inputs(matrix_class):
    matrix, _ = filled(matrix_class, 20, 64, GroupwiseFormat(8, False))
    assert torch.equal(matrix.multiply(torch.zeros(3, 64)), torch.zeros(3, 20))
    assert (matrix.multiply(torch.full((1, 64), 1e-40)).abs() < 1e-30).all()
    assert matrix.multiply(torch.zeros(0, 64)).shape == (0, 20)
    assert matrix.read_rows(torch.zeros(2, 0, dtype=torch.long)).shape == (2, 0, 64)


def test_4_bit_weights_take_5_bits_each_with_scales_and_minimums(matrix_class):
    matrix = matrix_class(64, 128, GroupwiseFormat(4, True))
    assert matrix.nbytes == 64 * 128 * 5 // 8


def test_the_kernel_refuses_inputs_of_another_width_and_rows_outside():
    if groupwise_matrix_class() is GroupwiseMatrix:
        pytest.skip("our kernels do not run here")
    matrix, _ = filled(CppGroupwiseMatrix, 20, 64, GroupwiseFormat(4, True))
    with pytest.raises(RuntimeError, match="rows of 60, expected 64"):
        matrix.multiply(torch.zeros(1, 60))
    for row in (-1, 20):
        with pytest.raises(RuntimeError, match=f"row {row}, expected 0 to 19"):
            matrix.read_rows(torch.tensor([row]))
    with pytest.raises(RuntimeError, match="do not fit"):
        matrix.write_rows(1, stored(random_rows(20, 64, matrix.form), matrix.form))


def test_the_kernel_tells_the_compiler_its_shapes():
    if groupwise_matrix_class() is GroupwiseMatrix:
        pytest.skip("our kernels do not run here")
    matrix, _ = filled(CppGroupwiseMatrix, 20, 64, GroupwiseFormat(4, True))
    with FakeTensorMode(allow_non_fake_inputs=True):  # the compiler traces such tensors, which have no values
        assert matrix.multiply(torch.empty(2, 3, 64)).shape == (2, 3, 20)
        assert matrix.read_rows(torch.empty(5, dtype=torch.long)).shape == (5, 64)


def test_without_kernels_plain_torch_is_used(monkeypatch):
    def fail():
        raise KernelBuildError("no compiler")

    monkeypatch.setattr("glassformer.kernels.groupwise_matrix._operations", fail)
    monkeypatch.setattr(kernel_registry, "_warn_once", lambda reason: None)
    assert groupwise_matrix_class() is GroupwiseMatrix


def test_the_plain_product_is_the_same_in_parts(monkeypatch):
    matrix, _ = filled(GroupwiseMatrix, 30, 96, GroupwiseFormat(4, True))
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(11, 96)).astype(np.float32))
    whole = matrix.multiply(x)
    monkeypatch.setattr("glassformer.kernels.groupwise_matrix.MAX_PARTIAL_SUMS", 3 * 30 * 4)
    assert torch.equal(matrix.multiply(x), whole)
