import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from glassformer.nn import Dropout
from glassformer.nn.dropout import drop


@pytest.mark.parametrize("chance", [0.1, 0.3, 0.5, 0.9])
def test_dropout_drops_the_given_fraction_and_keeps_the_mean(chance):
    torch.manual_seed(0)
    dropped = drop(torch.ones(1_000_000), chance)
    deviation = (chance * (1 - chance) / 1e6) ** 0.5
    assert abs((dropped == 0).double().mean().item() - chance) < 5 * deviation + 1 / 2**16
    assert torch.unique(dropped).tolist() == pytest.approx([0.0, 1 / (1 - chance)], rel=2e-4)


def test_neighboring_elements_are_dropped_independently():
    torch.manual_seed(1)
    kept = (drop(torch.ones(400_000), 0.5) > 0).double() - 0.5
    for distance in (1, 2, 3, 4, 8):
        assert abs((kept[:-distance] * kept[distance:]).mean().item() * 4) < 5 / 400_000**0.5


@given(
    shape=st.lists(st.integers(0, 5), max_size=3), dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16])
)
def test_dropout_accepts_any_shape_and_dtype(shape, dtype):
    x = torch.ones(shape, dtype=dtype)
    dropped = drop(x, 0.25)
    assert dropped.shape == x.shape
    assert dropped.dtype == dtype


def test_the_gradient_is_zero_where_the_output_was_dropped():
    torch.manual_seed(2)
    x = torch.randn(50, 7, requires_grad=True)
    dropped = drop(x, 0.4)
    dropped.sum().backward()
    torch.testing.assert_close(dropped, x * x.grad)


def test_the_same_seed_drops_the_same_elements_and_evaluation_drops_none():
    layer, x = Dropout(0.3), torch.ones(99)
    torch.manual_seed(3)
    first = layer(x)
    torch.manual_seed(3)
    assert torch.equal(first, layer(x))
    assert not torch.equal(first, layer(x))
    assert torch.equal(layer.eval()(x), x)
    assert not drop(x, 1.0).any()
    with pytest.raises(ValueError, match=r"dropout=1\.5"):
        Dropout(1.5)
