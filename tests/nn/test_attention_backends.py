"""Scaled dot-product attention: the backends agree, weights sum to one or zero, and returning them changes nothing."""

import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from glassformer.nn import Mask, attend, attention_weights

B, H, D = 2, 4, 8


def masks(t, s):
    """Every kind of mask, fully masked rows among them."""
    real = torch.ones(B, s, dtype=torch.bool)
    real[0, s // 2 :] = False
    nothing = torch.zeros(B, s, dtype=torch.bool)
    nothing[1] = True
    allowed = torch.rand(B, 1, t, s) > 0.5
    allowed[0, 0, 0] = False
    segments = torch.arange(s).expand(B, s) // 3
    return {
        "none": Mask(),
        "causal": Mask(causal=True),
        "window": Mask(window=2),
        "causal window": Mask(causal=True, window=3),
        "padding": Mask(real=real),
        "causal padding left": Mask(causal=True, real=real.flip(1)),
        "nothing to attend": Mask(real=nothing),
        "segments": Mask(query_segments=segments[:, s - t :], key_segments=segments),
        "causal segments": Mask(causal=True, query_segments=segments[:, s - t :], key_segments=segments),
        "allowed": Mask(allowed=allowed),
        "allowed per head": Mask(allowed=torch.rand(B, H, t, s) > 0.3),
    }


KINDS = list(masks(3, 3))


def random_qkv(t, s, groups=H, dtype=torch.float64, grad=False):
    q, k, v = (torch.randn(B, n, length, D, dtype=dtype) for n, length in ((H, t), (groups, s), (groups, s)))
    return [x.requires_grad_(grad) for x in (q, k, v)]


def run(qkv, **options):
    output = attend(*qkv, **options).output
    grads = torch.autograd.grad(output.square().sum(), qkv)
    return [output, *grads]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("t", "s"), [(6, 6), (2, 6), (1, 6)])
@pytest.mark.parametrize("groups", [H, 2, 1])
@pytest.mark.parametrize("with_bias", [False, True])
def test_math_and_sdpa_agree_forward_and_backward(kind, t, s, groups, with_bias):
    mask, qkv = masks(t, s)[kind], random_qkv(t, s, groups, grad=True)
    bias = torch.randn(1, H, t, s, dtype=torch.float64) if with_bias else None
    with_additive = mask.with_additive(t, s, bias, qkv[0])
    ours, *others = (
        run(qkv, mask=each, bias=bias, backend=backend)
        for each, backend in ((mask, "math"), (mask, "sdpa"), (with_additive, "sdpa"))
    )
    for theirs in others:
        for one, two in zip(ours, theirs, strict=True):
            assert two.isfinite().all()
            torch.testing.assert_close(one, two, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_math_and_sdpa_drop_the_same_weights_for_the_same_seed(kind):
    mask, qkv = masks(5, 5)[kind], random_qkv(5, 5, groups=2, grad=True)
    results = []
    for backend in ("math", "sdpa"):
        torch.manual_seed(7)
        results.append(run(qkv, mask=mask, dropout=0.4, backend=backend))
    undropped = attend(*qkv, mask=mask).output
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-10)
    assert not torch.allclose(results[0][0], undropped), "nothing was dropped"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_agrees_in_evaluation(kind, with_bias):
    mask, qkv = masks(4, 6)[kind], random_qkv(4, 6, groups=2, dtype=torch.float32)
    bias = torch.randn(1, H, 4, 6) if with_bias else None
    with torch.no_grad():
        flex, math = (attend(*qkv, mask=mask, bias=bias, backend=backend).output for backend in ("flex", "math"))
    torch.testing.assert_close(flex, math, atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("backend", ["math", "sdpa", "flex"])
def test_a_soft_cap_bounds_the_scores_before_the_bias(backend):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, heads, 5, 4) for heads in (4, 2, 2))
    bias = torch.randn(1, 4, 5, 5)
    products = q @ k.repeat_interleave(2, 1).mT * 0.5
    scores = (3.0 * torch.tanh(products / 3.0) + bias).masked_fill(torch.ones(5, 5).triu(1).bool(), float("-inf"))
    expected = scores.softmax(-1)
    options = {"mask": Mask(causal=True), "bias": bias, "scale": 0.5, "softcap": 3.0, "backend": backend}
    found = attend(q, k, v, need_weights=True, **options)
    torch.testing.assert_close(found.weights, expected)
    torch.testing.assert_close(found.output, expected @ v.repeat_interleave(2, 1))


def test_flex_refuses_dropout_instead_of_ignoring_it():
    with pytest.raises(ValueError, match=r"dropout=0\.1 with backend='flex'"):
        attend(*random_qkv(3, 3), dropout=0.1, backend="flex")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", ["math", "sdpa"])
def test_returning_weights_does_not_change_the_output_or_warn(kind, backend):
    mask, qkv = masks(4, 6)[kind], random_qkv(4, 6, dtype=torch.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain = attend(*qkv, mask=mask, backend=backend)
        looked = attend(*qkv, mask=mask, backend=backend, need_weights=True)
    assert plain.weights is None
    assert torch.equal(plain.output, looked.output)
    rebuilt = looked.weights @ qkv[2]
    torch.testing.assert_close(rebuilt, looked.output, atol=1e-6, rtol=1e-5)


@given(t=st.integers(1, 6), extra=st.integers(0, 4), kind=st.sampled_from(KINDS), seed=st.integers(0, 99))
def test_weights_of_a_row_sum_to_one_or_zero_with_finite_gradients(t, extra, kind, seed):
    torch.manual_seed(seed)
    s = t + extra
    mask, (q, k, v) = masks(t, s)[kind], random_qkv(t, s, grad=True)
    weights = attention_weights(q, k, mask=mask, bias=None, scale=D**-0.5)
    dense = mask.dense(t, s, torch.device("cpu"))
    may_look = torch.ones(B, H, t, s, dtype=torch.bool) if dense is None else dense.expand(B, H, t, s)
    assert (weights[~may_look] == 0).all()
    torch.testing.assert_close(weights.sum(-1), may_look.any(-1).double())
    for backend in ("math", "sdpa"):
        output = attend(q, k, v, mask=mask, backend=backend).output
        assert (output[~may_look.any(-1)] == 0).all()
        for grad in torch.autograd.grad(output.sum() + weights.square().sum(), (q, k, v), retain_graph=True):
            assert grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_weights_are_computed_in_float32(dtype):
    """Scores in the hundreds lose too many digits in half precision: bfloat16 rounds them to whole units."""
    q, k, v = ((x * 30).to(dtype) for x in random_qkv(8, 64, dtype=torch.float32))
    weights = attend(q, k, v, scale=0.1, need_weights=True, backend="math").weights
    exact = attend(q.double(), k.double(), v.double(), scale=0.1, need_weights=True).weights
    assert weights.dtype == dtype
    torch.testing.assert_close(weights.double(), exact, atol=5e-3, rtol=5e-3)


@pytest.mark.parametrize("backend", ["math", "sdpa"])
def test_returned_weights_are_before_dropout_and_draw_no_random_numbers(backend):
    qkv = random_qkv(4, 6)
    results = []
    for need_weights in (False, True):
        torch.manual_seed(5)
        results.append(attend(*qkv, dropout=0.5, need_weights=need_weights, backend=backend))
        results.append(torch.rand(3))
    assert torch.equal(results[0].output, results[2].output)
    assert torch.equal(results[1], results[3])
    torch.testing.assert_close(results[2].weights, attend(*qkv, need_weights=True).weights)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.zeros(2, 4, 8)}, "q has shape"),
        ({"k": torch.zeros(B, H, 3, D + 1)}, "expected one batch size and head size"),
        ({"v": torch.zeros(B, H, 4, D)}, "one length for k and v"),
        ({"bias": torch.zeros(3, H, 3, 3)}, "bias has shape"),
        (
            {"mask": Mask(real=torch.ones(B, 4, dtype=torch.bool))},
            r"mask real has shape \(2, 4\): expected \(2, 3\)",
        ),
        ({"mask": Mask(allowed=torch.ones(B, 3, 3, 3, dtype=torch.bool))}, "mask has shape"),
        ({"dropout": 1.0}, "dropout=1.0"),
    ],
)
def test_errors_name_the_bad_argument(change, message):
    q, k, v = random_qkv(3, 3, dtype=torch.float32)
    arguments = {"q": q, "k": k, "v": v} | change
    with pytest.raises(ValueError, match=message):
        attend(**arguments)
