"""Residual connections by the C++ kernels have the results and gradients of the plain ones."""

import pytest
import torch
from torch import nn

from glassformer.kernels.cpu_training import drop_numbers
from glassformer.nn import Sublayer, dropout
from glassformer.training import cpu_functions
from glassformer.training.cpu_layers import CpuLayers

pytestmark = pytest.mark.usefixtures("training_kernels")
KERNELS = "add_and_normalize", "normalize_rows", "add_dropped"


@pytest.fixture
def calls(monkeypatch):
    """Collect the names of the kernels that are called."""
    names = []
    for name in KERNELS:
        kernel = getattr(cpu_functions, name)
        monkeypatch.setattr(cpu_functions, name, lambda *given, of=name, run=kernel: names.append(of) or run(*given))
    return names


@pytest.fixture(autouse=True)
def same_dropout(monkeypatch):
    """Let plain layers drop the elements that the kernels drop for the same state of torch's generator."""

    def drop_plainly(x, p):
        seed = int(torch.empty((), dtype=torch.int64).random_(-(2**63), None))
        return x * drop_numbers(torch.ones_like(x), p, seed)

    monkeypatch.setattr(dropout, "drop", drop_plainly)


def results(sublayer, *, active):
    """Return the output and all gradients of a residual connection around a linear layer."""
    torch.manual_seed(1)
    linear, x = nn.Linear(12, 12), torch.randn(3, 5, 12, requires_grad=True)
    sublayer.zero_grad()

    def run():
        found = sublayer(sublayer(x, linear), lambda y: y * 2)
        found.square().sum().backward()
        return [found.detach(), x.grad, linear.weight.grad, *(p.grad for p in sublayer.parameters())]

    if not active:
        return run()
    with CpuLayers(sublayer).active():
        return run()


def compare(sublayer):
    for found, right in zip(results(sublayer, active=True), results(sublayer, active=False), strict=True):
        torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-4)


def norm_of(kind):
    torch.manual_seed(0)
    norm = nn.LayerNorm(12) if kind == "layer" else nn.RMSNorm(12, eps=1e-6)
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    return norm


@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize(
    ("placement", "p", "multiplier", "expected"),
    [
        ("post", 0.0, 1.0, ["add_and_normalize"] * 2),
        ("post", 0.3, 0.5, ["add_and_normalize"] * 2),
        ("pre", 0.0, 1.0, ["normalize_rows"] * 2),
        ("pre", 0.3, 1.0, ["normalize_rows", "add_dropped"] * 2),
        ("pre", 0.3, 0.5, ["normalize_rows"] * 2),
    ],
)
def test_results_and_gradients(calls, kind, placement, p, multiplier, expected):
    compare(Sublayer(norm_of(kind), placement=placement, dropout=p, multiplier=multiplier))
    assert calls == expected


def test_other_residual_connections_stay_plain(calls):
    norm = norm_of("layer")
    strided = norm_of("layer")
    strided.weight = nn.Parameter(torch.randn(24)[::2])
    for sublayer in (
        Sublayer(norm, placement="output"),
        Sublayer(norm, placement="sandwich", post_norm=norm_of("rms")),
        Sublayer(nn.LayerNorm(12, elementwise_affine=False), placement="post"),
        Sublayer(nn.Identity(), placement="pre"),
        Sublayer(strided, placement="pre"),
    ):
        compare(sublayer)
    with torch.autocast("cpu", torch.bfloat16):
        results(Sublayer(norm_of("layer"), placement="pre"), active=True)
    assert calls == []
    wide = Sublayer(norm_of("rms"), placement="post")
    with CpuLayers(wide).active():
        assert wide(torch.randn(2, 12), lambda y: y[:1]).shape == (2, 12)
        assert wide.double()(torch.randn(2, 12, dtype=torch.float64), lambda y: y).dtype == torch.float64
    assert calls == []


def test_evaluation_drops_nothing(calls):
    sublayer = Sublayer(norm_of("layer"), placement="pre", dropout=0.5).eval()
    compare(sublayer)
    assert calls == ["normalize_rows"] * 2


@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.parametrize("part", ["norm", "dropout"])
@pytest.mark.parametrize("kind", ["forward", "full_backward"])
def test_hooks_on_parts_are_called(calls, placement, part, kind):
    sublayer, seen = Sublayer(norm_of("layer"), placement=placement, dropout=0.2), []
    getattr(getattr(sublayer, part), f"register_{kind}_hook")(lambda *given: seen.append(part))
    compare(sublayer)
    assert seen == [part] * 4, "by two residual connections, with and without the kernels"
    assert calls == []


@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.parametrize("replace", ["norm", "dropout", "branch"])
def test_replaced_parts_are_called(calls, placement, replace):
    sublayer = Sublayer(norm_of("layer"), placement=placement, dropout=0.2)
    if replace == "branch":
        sublayer.branch = lambda y: y * 3
    else:
        getattr(sublayer, replace).forward = lambda y: y * 3
    compare(sublayer)
    assert calls == []


def test_a_norm_that_is_exchanged_later_is_called():
    sublayer = Sublayer(norm_of("layer"), placement="post")
    layers = CpuLayers(sublayer)
    sublayer.norm = nn.Identity()
    x = torch.randn(2, 12)
    with layers.active():
        torch.testing.assert_close(sublayer(x, lambda y: y), 2 * x)


def test_one_dimension_is_computed_plainly():
    sublayer, x = Sublayer(norm_of("rms"), placement="pre"), torch.randn(12)
    with CpuLayers(sublayer).active():
        found = sublayer(x, torch.sin)
    torch.testing.assert_close(found, sublayer(x, torch.sin))
