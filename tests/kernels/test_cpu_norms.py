"""Residual sums with dropout and norms by the kernels have the values and gradients of torch's in float64."""

import pytest
import torch
import torch.nn.functional as F

from glassformer.kernels.cpu_norms import BranchRules, RowNorm, add_and_normalize, norm_gradient, normalize_rows
from glassformer.kernels.cpu_training import add_dropped, drop_numbers

pytestmark = pytest.mark.usefixtures("training_kernels")


def reference(total, norm, weight, bias):
    if norm.kind == "layer":
        return F.layer_norm(total, (total.shape[1],), weight, bias, norm.eps)
    return F.rms_norm(total, (total.shape[1],), weight, norm.eps)


def make(rows, width, kind, *, has_bias=True):
    torch.manual_seed(rows + width)
    weight, bias = torch.randn(2, width)
    return RowNorm(kind, 0.5, weight, bias if has_bias and kind == "layer" else None), torch.randn(4, rows, width)


def check(found, right):
    torch.testing.assert_close(found, right.float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 5), (33, 64), (70, 500), (9, 1030)])
@pytest.mark.parametrize("rules", [BranchRules(), BranchRules(0.3, -5, 0.5)])
def test_the_norm_of_a_sum_and_its_gradients(kind, rows, width, rules):
    norm, (x, branch, upstream, _) = make(rows, width, kind)
    leaves = [part.double().requires_grad_() for part in (x, branch, norm.weight)]
    bias = None if norm.bias is None else norm.bias.double().requires_grad_()
    kept = drop_numbers(torch.ones(rows, width), rules.p, rules.seed).double() * rules.multiplier
    total = leaves[0] + leaves[1] * kept
    right = reference(total, norm, leaves[2], bias)
    right.backward(upstream.double())
    found_total, found = add_and_normalize(x, branch, norm, rules)
    check(found_total, total)
    check(found, right)
    gradients = norm_gradient(upstream, found_total, norm, rules=rules)
    for gradient, leaf in zip(gradients, leaves, strict=False):
        check(gradient, leaf.grad)
    assert (gradients[3] is None) == (bias is None)
    if bias is not None:
        check(gradients[3], bias.grad)


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_the_norm_of_rows_and_a_gradient_that_passes_by(kind):
    norm, (x, upstream, passed, _) = make(40, 24, kind, has_bias=False)
    leaf = x.double().requires_grad_()
    right = reference(leaf, norm, norm.weight.double(), None)
    (right * upstream + leaf * passed).sum().backward()
    check(normalize_rows(x, norm), right)
    of_x, of_branch, _, of_bias = norm_gradient(upstream, x, norm, of_residual=passed)
    check(of_x, leaf.grad)
    assert of_branch is None
    assert of_bias is None
    assert torch.equal(norm_gradient(upstream.t().contiguous().t(), x, norm, of_residual=passed)[0], of_x)


def test_results_do_not_depend_on_the_number_of_threads():
    norm, (x, branch, upstream, passed) = make(2048, 160, "layer")  # enough for torch to sum in threads
    rules = BranchRules(0.1, 3)
    results, threads = [], torch.get_num_threads()
    try:
        for n in (1, 2, 5):
            torch.set_num_threads(n)
            total, y = add_and_normalize(x, branch, norm, rules)
            more = norm_gradient(upstream, total, norm, of_residual=passed, rules=rules)
            results.append([total, y, *more, add_dropped(x, branch, 0.3, 7)])
    finally:
        torch.set_num_threads(threads)
    for others in results[1:]:
        assert all(map(torch.equal, results[0], others))


def test_a_branch_is_added_with_elements_dropped():
    x, branch = torch.randn(2, 5, 7, 90)
    torch.testing.assert_close(add_dropped(x, branch, 0.4, 9), x + drop_numbers(branch, 0.4, 9))
    assert torch.equal(add_dropped(x.mT, branch.mT, 0.4, 9), add_dropped(x.mT.contiguous(), branch.mT, 0.4, 9))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.ones(2, 3, dtype=torch.float64)}, "float32"),
        ({"x": torch.ones(6)}, "two dimensions"),
        ({"branch": torch.ones(3, 2)}, "one shape"),
        ({"weight": torch.ones(4)}, "parameter of a norm"),
        ({"bias": torch.ones(6)[::2]}, "contiguous"),
        ({"weight": torch.ones(3, dtype=torch.bfloat16)}, "float32"),
    ],
)
def test_wrong_tensors_are_refused(change, message):
    given = {"x": torch.ones(2, 3), "branch": torch.ones(2, 3), "weight": torch.ones(3), "bias": torch.ones(3)} | change
    if given["x"].dim() == 1:
        given["branch"] = given["x"]
    with pytest.raises(ValueError, match=message):
        add_and_normalize(
            given["x"], given["branch"], RowNorm("layer", 1e-5, given["weight"], given["bias"]), BranchRules()
        )


def test_rows_of_zeros_are_divided_by_epsilon_alone():
    norm = RowNorm("layer", 1e-5, torch.ones(20), None)
    assert normalize_rows(torch.zeros(2, 20), norm).tolist() == [[0.0] * 20] * 2
    of_x = norm_gradient(torch.arange(40.0).view(2, 20), torch.zeros(2, 20), norm)[0]
    assert of_x.isfinite().all()


def test_unknown_norms_are_refused():
    with pytest.raises(ValueError, match="expected 'layer' or 'rms'"):
        normalize_rows(torch.ones(2, 3), RowNorm(None, 1e-5, torch.ones(3), None))


def test_no_rows():
    norm, (x, branch, upstream, _) = make(0, 4, "layer")
    total, y = add_and_normalize(x, branch, norm, BranchRules(0.5, 1))
    assert total.shape == y.shape == (0, 4)
    assert norm_gradient(upstream, total, norm)[2].tolist() == [0.0] * 4
