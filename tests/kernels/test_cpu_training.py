"""The kernels of training on a CPU have the values and gradients of the same formulas in float64."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from glassformer.kernels import cpp_library
from glassformer.kernels.cpu_training import (
    AttentionRules,
    HeadNorms,
    attend_rows,
    attend_rows_gradient,
    drop_numbers,
    norm_of,
    relu_and_drop,
    relu_and_drop_gradient,
    replace_by_gradient,
    silu_gate,
    silu_gate_gradient,
)
from glassformer.nn.attention_backends import attend
from glassformer.nn.masks import Mask
from glassformer.nn.multi_head_attention import merge_heads, split_heads
from glassformer.nn.positions import Rotation

pytestmark = pytest.mark.usefixtures("training_kernels")


def reference(q, k, v, rules, norms):
    """Return the attention of projected rows by torch, in the dtype of q."""
    head_dim = q.shape[-1] // rules.n_heads

    def prepared(x, n_heads, weight, bias):
        x = split_heads(x, n_heads)
        if rules.norm == "layer":
            x = F.layer_norm(x, (head_dim,), weight, bias, rules.eps)
        elif rules.norm == "rms":
            x = F.rms_norm(x, (head_dim,), weight, rules.eps)
        if rules.cos is None:
            return x
        return Rotation(rules.cos[:, None].to(x.dtype), rules.sin[:, None].to(x.dtype)).rotate(x)

    heads = prepared(q, rules.n_heads, *norms[:2]), prepared(k, rules.n_groups, *norms[2:])
    mask = Mask(causal=rules.causal, real=rules.real)
    values = split_heads(v, rules.n_groups)
    return merge_heads(attend(*heads, values, mask=mask, scale=rules.scale, backend="math").output)


CASES = {
    # batch, queries, keys, heads, key-value heads, head size, norm, rotated numbers, causal, padded
    "plain": (2, 6, 6, 2, 2, 8, None, 0, False, False),
    "one token": (1, 1, 1, 1, 1, 4, "layer", 4, True, True),
    "translation": (3, 14, 14, 4, 4, 40, "layer", 40, True, True),
    "cross attention": (2, 7, 19, 2, 2, 24, None, 0, False, True),
    "grouped queries": (2, 17, 17, 4, 2, 16, "rms", 8, True, False),
    "more keys than queries": (2, 3, 9, 2, 1, 5, "rms", 0, True, False),
    "more queries than keys": (2, 9, 4, 2, 2, 32, None, 0, True, False),
    "plain grouped": (2, 17, 19, 4, 2, 32, None, 0, False, True),
    "long": (1, 128, 128, 2, 2, 64, None, 0, True, True),
}


def make(batch, n_queries, n_keys, n_heads, n_groups, head_dim, norm, rotated, causal, padded):
    """Return queries, keys and values, their rules and norms, for a row of CASES."""
    torch.manual_seed(n_queries + head_dim)
    lengths = (n_queries, n_heads), (n_keys, n_groups), (n_keys, n_groups)
    given = [torch.randn(batch, length, heads * head_dim) for length, heads in lengths]
    angles = torch.randn(batch, n_queries, rotated // 2) if rotated else None
    real = torch.rand(batch, n_keys) > 0.3 if padded else None
    if real is not None and batch > 1:
        real[0] = False  # a sequence of padding alone
    rules = AttentionRules(
        n_heads=n_heads,
        n_groups=n_groups,
        scale=head_dim**-0.5,
        causal=causal,
        real=real,
        norm=norm,
        eps=1e-6,
        cos=None if angles is None else angles.cos(),
        sin=None if angles is None else angles.sin(),
    )
    weights = [torch.randn(head_dim) for _ in range(4)]
    norms = HeadNorms(*(weights if norm == "layer" else (weights[0], None, weights[2], None) if norm else ()))
    return given, rules, norms


@pytest.mark.parametrize("name", [*CASES])
def test_attention_and_its_gradients_equal_those_of_the_formula(name):
    given, rules, norms = make(*CASES[name])
    learned = [*given, *(x for x in norms if x is not None)]
    wide = [x.double().requires_grad_() for x in learned]
    some = iter(wide[3:])
    right = reference(*wide[:3], rules, [None if x is None else next(some) for x in norms])
    found = attend_rows(*given, rules, norms)
    torch.testing.assert_close(found, right.detach().float(), rtol=1e-5, atol=2e-6)
    upstream = torch.randn_like(found)
    expected = torch.autograd.grad(right, wide, upstream.double())
    of_q, of_k, of_v, of_norms = attend_rows_gradient(upstream, *given, rules, norms)
    gradients = [of_q, of_k, of_v, *(x for x in of_norms if x is not None)]
    for gradient, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, other.float(), rtol=1e-4, atol=1e-5)


def test_rows_may_be_parts_of_a_joined_tensor():
    given, rules, norms = make(*CASES["translation"])
    joined = torch.cat(given, -1)
    parts = joined.chunk(3, -1)
    upstream = torch.randn(given[0].shape)
    assert torch.equal(attend_rows(*parts, rules, norms), attend_rows(*given, rules, norms))
    for one, other in zip(
        attend_rows_gradient(upstream, *parts, rules, norms)[:3],
        attend_rows_gradient(upstream, *given, rules, norms)[:3],
        strict=True,
    ):
        assert torch.equal(one, other)
    columns = given[0].mT.contiguous().mT  # numbers of a row that are not neighbors
    assert torch.equal(attend_rows(columns, *given[1:], rules, norms), attend_rows(*given, rules, norms))


def test_one_rotation_serves_all_sequences():
    given, rules, norms = make(*CASES["translation"])
    one = replace(rules, cos=rules.cos[:1].contiguous(), sin=rules.sin[:1].contiguous())
    all_of_it = replace(
        rules, cos=one.cos.expand_as(rules.cos).contiguous(), sin=one.sin.expand_as(rules.sin).contiguous()
    )
    assert torch.equal(attend_rows(*given, one, norms), attend_rows(*given, all_of_it, norms))


def test_threads_and_other_sequences_of_the_batch_change_no_bit():
    given, rules, norms = make(*CASES["translation"])
    upstream, threads = torch.randn(given[0].shape), torch.get_num_threads()
    results = []
    try:
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            results.append((attend_rows(*given, rules, norms), *attend_rows_gradient(upstream, *given, rules, norms)))
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0][:4], other[:4], strict=True))
        assert all(torch.equal(a, b) for a, b in zip(results[0][4], other[4], strict=True))
    alone = replace(rules, cos=rules.cos[1:2], sin=rules.sin[1:2], real=rules.real[1:2])
    assert torch.equal(attend_rows(*(x[1:2] for x in given), alone, norms), results[0][0][1:2])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"real": torch.ones(2, 3, dtype=torch.bool)}, "real"),
        ({"cos": torch.ones(3, 14, 30), "sin": torch.ones(3, 14, 30)}, "cosines"),
        ({"n_groups": 2}, "keys"),
        ({"sin": None}, "together"),
    ],
)
def test_tensors_of_other_shapes_are_refused(changed, message):
    given, rules, norms = make(*CASES["translation"])
    with pytest.raises(ValueError, match=message):
        attend_rows(*given, replace(rules, **changed), norms)


def test_other_dtypes_are_refused():
    given, rules, norms = make(*CASES["plain"])
    with pytest.raises(ValueError, match="float64 tensor on cpu: expected float32"):
        attend_rows(*(x.double() for x in given), rules, norms)


@pytest.mark.parametrize("shape", [(1,), (5, 7), (33, 100), (3, 4, 512)])
def test_gated_silu_and_its_gradient(shape):
    torch.manual_seed(1)
    gate, up, upstream = (4 * torch.randn(shape) for _ in range(3))
    gate.view(-1)[0] = -200.0  # e^200 overflows float32
    wide = [x.double().requires_grad_() for x in (gate, up)]
    right = F.silu(wide[0]) * wide[1]
    torch.testing.assert_close(silu_gate(gate, up), right.detach().float(), rtol=2e-6, atol=1e-6)
    expected = torch.autograd.grad(right, wide, upstream.double())
    for found, other in zip(silu_gate_gradient(upstream, gate, up), expected, strict=True):
        torch.testing.assert_close(found, other.float(), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (5, 100), (17, 4001)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_replaces_logits_by_their_gradient(shape, smoothing):
    torch.manual_seed(2)
    logits, targets = 5 * torch.randn(shape), torch.randint(shape[1], shape[:1])
    logits[0] -= 300
    wide = logits.double().requires_grad_()
    right = F.cross_entropy(wide, targets, label_smoothing=smoothing, reduction="sum")
    (expected,) = torch.autograd.grad(right, wide)
    torch.testing.assert_close(
        replace_by_gradient(logits, targets, smoothing), right.detach().float(), rtol=2e-6, atol=2e-4
    )
    torch.testing.assert_close(logits, expected.float(), rtol=1e-5, atol=1e-6)


def test_cross_entropy_refuses_targets_that_are_no_classes():
    for targets in ([0, 5], [-1, 0], [0]):
        with pytest.raises(IndexError, match="expected 2 ids from 0 to 4"):
            replace_by_gradient(torch.zeros(2, 5), torch.tensor(targets), 0.1)
    assert replace_by_gradient(torch.zeros(0, 5), torch.zeros(0, dtype=torch.int64), 0.1) == 0


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_cross_entropy_of_logits_that_are_not_finite_is_not_finite(bad):
    logits = torch.zeros(1, 50)
    logits[0, 3] = bad
    assert not replace_by_gradient(logits, torch.tensor([1]), 0.1).isfinite()


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in cpp_library.supported_sets() if name != "amx"])
def test_each_instruction_set_of_this_cpu(name):
    environment = os.environ | {cpp_library.CHOICE_VARIABLE: name}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(Path(__file__))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count(".") > 20, "tests passed, and were not skipped"


@pytest.mark.parametrize("p", [0.0, 0.01, 0.1, 0.5, 0.999])
def test_dropout_drops_each_element_with_its_probability(p):
    n = 100_000
    found = drop_numbers(torch.full((n,), 3.0), p, seed=-7)
    is_dropped = found == 0
    torch.testing.assert_close(found[~is_dropped], torch.full((n,), 3 / (1 - p))[~is_dropped])
    deviation = (p * (1 - p) / n) ** 0.5
    assert abs(is_dropped.double().mean() - p) <= 4.5 * deviation
    for distance in (1, 2, 16, 1024, 1025) if p in (0.1, 0.5) else ():
        both = (is_dropped[distance:] & is_dropped[:-distance]).double().mean()
        assert abs(both - p * p) <= 5 * (p * p / n) ** 0.5, "elements are dropped independently"


def test_dropout_depends_on_the_seed_alone():
    x = torch.randn(5, 1999)
    found = drop_numbers(x, 0.3, seed=2**62 + 5)
    assert torch.equal(drop_numbers(x, 0.3, seed=2**62 + 5), found)
    others = [drop_numbers(x, 0.3, seed=seed) == 0 for seed in (2**62 + 6, 5, -(2**63), 2**63 - 1)]
    for one in others:
        assert abs(((found == 0) & one).double().mean() - 0.09) < 0.02
    threads = torch.get_num_threads()
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            assert torch.equal(drop_numbers(x, 0.3, seed=2**62 + 5), found)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(drop_numbers(x.t(), 0.3, seed=1), drop_numbers(x.t().contiguous(), 0.3, seed=1))


@pytest.mark.parametrize("p", [-0.1, 1.0, 1.5])
def test_dropout_needs_a_probability_below_one(p):
    with pytest.raises(ValueError, match="below 1"):
        drop_numbers(torch.ones(3), p, seed=0)


@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize("n", [1, 17, 1024, 40_000])
def test_relu_and_dropout_in_place_equal_one_after_the_other(n, p):
    x = torch.randn(n)
    found, gradient = x.clone(), torch.randn(n)
    relu_and_drop(found, p, seed=5)
    right = drop_numbers(x.relu(), p, seed=5) if p else x.relu()
    assert torch.equal(found, right)
    expected = (drop_numbers(gradient, p, seed=5) if p else gradient) * (x > 0)
    relu_and_drop_gradient(gradient, found, p)
    torch.testing.assert_close(gradient, expected)


def test_relu_and_dropout_keep_nan():
    x = torch.tensor([torch.nan, -1.0, 2.0])
    relu_and_drop(x, 0.0, seed=0)
    assert x.isnan().tolist() == [True, False, False]
    with pytest.raises(ValueError, match="contiguous"):
        relu_and_drop(torch.randn(4, 4).t(), 0.1, seed=0)


def test_the_norm_of_many_tensors_does_not_depend_on_the_threads():
    tensors = [torch.randn(shape) for shape in [(1,), (1023,), (300, 700), (), (0, 4), (2**16 + 5,)]]
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            found.append(norm_of(tensors))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*found)
    torch.testing.assert_close(found[0], torch.cat([x.flatten() for x in tensors]).double().norm().float())
    assert norm_of([torch.tensor([torch.nan]), torch.ones(3)]).isnan()
    assert norm_of([]) == 0
    with pytest.raises(ValueError, match="float32"):
        norm_of([torch.ones(3).double()])
