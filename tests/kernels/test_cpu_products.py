"""Linear layers by AMX tiles equal the same products of numbers that are rounded to bfloat16 first."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.kernels.cpu_products import (
    MAX_LAYERS,
    has_products,
    linear_backward,
    linear_forward,
    write_linear_gradients,
)

pytestmark = pytest.mark.usefixtures("training_kernels")


@pytest.fixture(autouse=True)
def _needs_amx(training_kernels):
    if not has_products():
        pytest.skip("needs a CPU with AMX")


def rounded(x):
    return x.bfloat16().double()


def draw(rows, n_in, widths, bias):
    x, weights = torch.randn(rows, n_in), [torch.randn(n, n_in) for n in widths]
    biases = [torch.randn(n) if bias else None for n in widths]
    return x, weights, biases, [torch.randn(rows, n) for n in widths]


def check(rows, n_in, widths, *, bias):
    torch.manual_seed(rows + n_in)
    x, weights, biases, of_outs = draw(rows, n_in, widths, bias)
    outs = linear_forward(x, weights, biases)
    for out, weight, added in zip(outs, weights, biases, strict=True):
        right = rounded(x) @ rounded(weight).T + (0 if added is None else added.double())
        torch.testing.assert_close(out.double(), right, rtol=1e-5, atol=1e-4)
    of_x, of_weights, of_biases = linear_backward(of_outs, x, weights, [bias] * len(weights))
    right = sum(rounded(of_out) @ rounded(weight) for of_out, weight in zip(of_outs, weights, strict=True))
    torch.testing.assert_close(of_x.double(), right, rtol=1e-5, atol=1e-4)
    for of_out, of_weight, of_bias in zip(of_outs, of_weights, of_biases, strict=True):
        torch.testing.assert_close(of_weight.double(), rounded(of_out).T @ rounded(x), rtol=1e-5, atol=1e-4)
        assert (of_bias is None) != bias
        if bias:
            torch.testing.assert_close(of_bias.double(), of_out.double().sum(0), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 32, 33, 47, 100])
@pytest.mark.parametrize("n_in", [1, 16, 33, 40])
def test_rows_and_widths_that_end_within_a_tile(rows, n_in):
    check(rows, n_in, [n_in], bias=True)
    check(rows, n_in, [16, 5, 33], bias=False)
    check(rows, n_in, [48, 1, 32, 17], bias=True)


def test_more_columns_than_the_cache_holds_at_once():
    check(40, 700, [1000], bias=True)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 70), st.integers(1, 70), st.lists(st.integers(1, 70), min_size=1, max_size=4), st.booleans())
def test_any_shape(rows, n_in, widths, bias):
    check(rows, n_in, widths, bias=bias)


def test_the_number_of_threads_changes_no_bit():
    x, weights, biases, of_outs = draw(300, 65, [33, 70], bias=True)
    found, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            of_x, of_weights, of_biases = linear_backward(of_outs, x, weights, [True, True])
            found.append([*linear_forward(x, weights, biases), of_x, *of_weights, *of_biases])
    finally:
        torch.set_num_threads(before)
    for some in found[1:]:
        assert all(map(torch.equal, some, found[0]))


def test_gradients_of_parameters_can_be_added_to_others():
    x, weights, _, of_outs = draw(50, 20, [33], bias=True)
    _, (of_weight,), (of_bias,) = linear_backward(of_outs, x, weights, [True])
    sums = torch.ones_like(of_weight), torch.ones_like(of_bias)
    for _ in range(2):
        write_linear_gradients(of_outs, x, weights, [sums[0]], [sums[1]], None, adds=True)
    torch.testing.assert_close(sums[0], 1 + 2 * of_weight, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(sums[1], 1 + 2 * of_bias, rtol=1e-5, atol=1e-5)


def test_no_rows_have_no_gradient():
    x, weights = torch.empty(0, 8), [torch.randn(3, 8)]
    assert linear_forward(x, weights, [None])[0].shape == (0, 3)
    of_x, (of_weight,), (of_bias,) = linear_backward([torch.empty(0, 3)], x, weights, [True])
    assert of_x.shape == (0, 8)
    assert not of_weight.any()
    assert not of_bias.any()


def test_nan_and_infinity_stay_what_they_are():
    x = torch.ones(20, 4)
    x[3, 1], x[5, 2] = torch.nan, torch.inf
    (out,) = linear_forward(x, [torch.ones(6, 4)], [None])
    assert out[3].isnan().all()
    assert (out[5] == torch.inf).all()
    assert (out[[0, 19]] == 4).all()


def test_what_the_kernels_cannot_read_is_refused():
    x, weight, bias = torch.randn(20, 8), torch.randn(5, 8), torch.randn(5)
    for arguments in (
        (x, [], []),
        (x, [weight] * (MAX_LAYERS + 1), [None] * (MAX_LAYERS + 1)),
        (x[None], [weight], [None]),
        (x, [weight[:, 1:]], [None]),
        (x, [weight], [bias[1:]]),
        (x, [weight], [None, None]),
        (x.double(), [weight], [None]),
        (x, [weight], [bias.double()]),
    ):
        with pytest.raises(ValueError, match="expected"):
            linear_forward(*arguments)
    of_out = torch.randn(20, 5)
    with pytest.raises(ValueError, match="expected"):
        linear_backward([of_out[1:]], x, [weight], [False])
    with pytest.raises(ValueError, match="expected"):
        write_linear_gradients([of_out], x, [weight], [weight.t().contiguous().t()], [None], None)
    strided = torch.randn(20, 16)[:, ::2]
    torch.testing.assert_close(*(linear_forward(y, [weight], [None])[0] for y in (strided, strided.contiguous())))
