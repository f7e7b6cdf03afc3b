import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from glassformer import reference
from glassformer.kernels.kernel_set import KernelSet
from glassformer.nn import Alibi, RelativeBias, Rotary, SinusoidalPositions, sinusoids
from glassformer.nn.rotary_scaling import RotaryScaling
from glassformer.reference.parameters import Parameters
from glassformer.reference.positions import RelativeBias as ReferenceRelativeBias
from glassformer.reference.positions import alibi


@given(length=st.integers(1, 40), width=st.integers(1, 33), halves=st.booleans())
def test_sinusoids_equal_the_reference_for_even_and_odd_widths(length, width, halves):
    ours = sinusoids(length, width, halves=halves).numpy()
    np.testing.assert_allclose(ours, reference.sinusoids(length, width, halves=halves), atol=1e-12)


def test_the_first_sinusoids_have_the_shortest_period():
    """The text of document 000 states the opposite, but its formula and its code agree with this test."""
    table = sinusoids(1000, 64)
    turns = [(table[1:, i].sign() != table[:-1, i].sign()).sum().item() for i in (0, 20, 60)]
    assert turns[0] > 300
    assert turns == sorted(turns, reverse=True)
    assert turns[2] <= 1


def test_a_shift_of_the_sinusoids_is_a_rotation():
    table = sinusoids(50, 16)
    angle = 7 * 10000.0 ** (-torch.arange(0, 16, 2, dtype=torch.float64) / 16)
    sin, cos = table[:43, 0::2], table[:43, 1::2]
    torch.testing.assert_close(table[7:, 0::2], sin * angle.cos() + cos * angle.sin())


def test_sinusoids_are_not_in_the_state_dict():
    positions = SinusoidalPositions(9, 6)
    exact = positions(torch.arange(9)[None], torch.float64)
    assert positions.state_dict() == {}
    assert torch.equal(positions.bfloat16().double()(torch.arange(9)[None], torch.float64), exact)


@given(shift=st.integers(0, 10_000), seed=st.integers(0, 20))
def test_rotary_scores_depend_only_on_distance(shift, seed):
    torch.manual_seed(seed)
    q, k = torch.randn(2, 1, 1, 5, 8, dtype=torch.float64)
    rotary = Rotary(8)

    def scores(start):
        rotate = rotary(torch.arange(start, start + 5)[None]).rotate
        return rotate(q) @ rotate(k).transpose(-1, -2)

    torch.testing.assert_close(scores(shift), scores(0), atol=1e-9, rtol=1e-9)


def test_rotation_preserves_the_norm():
    x = torch.randn(2, 3, 5, 8)
    torch.testing.assert_close(Rotary(8)(torch.arange(5)[None]).rotate(x).norm(dim=-1), x.norm(dim=-1))


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("n_buckets", "max_distance"), [(32, 128), (8, 16), (16, 50), (4, 7)])
def test_relative_buckets_equal_the_reference(bidirectional, n_buckets, max_distance):
    ours = RelativeBias(3, n_buckets=n_buckets, max_distance=max_distance, bidirectional=bidirectional)
    params = Parameters({"weight": np.zeros((n_buckets, 3))})
    theirs = ReferenceRelativeBias(params, max_distance, bidirectional)
    ahead = torch.arange(-2 * max_distance, 2 * max_distance + 1)
    buckets = ours.bucket(ahead).tolist()
    assert buckets == [theirs.bucket(int(a)) for a in ahead]
    assert set(buckets) <= set(range(n_buckets))


def test_relative_bias_of_the_last_queries_equals_the_last_rows_of_the_whole():
    bias, places = RelativeBias(2, n_buckets=8, max_distance=16, bidirectional=False), torch.arange(9)[None]
    torch.testing.assert_close(bias(places[:, -2:], places), bias(places, places)[:, :, -2:])


@pytest.mark.parametrize("n_heads", [1, 2, 3, 6, 8, 12])
def test_alibi_equals_the_reference_and_decreases_with_distance(n_heads):
    places = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [0, 0, 1, 2, 2, 2, 3]])
    ours = Alibi(n_heads)(places, places)
    np.testing.assert_allclose(ours.numpy(), alibi(n_heads, places.numpy()), atol=1e-15)
    assert len(set(Alibi(n_heads).slopes)) == n_heads
    assert (ours[0, :, -1].diff(dim=-1) > 0).all()


def test_alibi_slopes_for_eight_heads_equal_the_paper():
    assert Alibi(8).slopes == [2.0 ** -(h + 1) for h in range(8)]


def test_rotary_refuses_odd_head_sizes():
    with pytest.raises(ValueError, match="head_dim=5 with rotary positions: expected an even"):
        Rotary(5)


def test_rotary_angles_are_exact_at_large_positions():
    rotation = Rotary(4, theta=10000.0)(torch.tensor([[1_000_003]]))
    assert rotation.cos[0, 0, 0, 0].item() == pytest.approx(math.cos(1_000_003), abs=1e-12)


@pytest.mark.parametrize("scaling", [None, RotaryScaling(kind="linear", factor=4.0)])
def test_cached_frequencies_give_the_same_rotation_and_can_be_trained_with(scaling):
    class Turning(KernelSet):
        @override
        def can_find_angles(self, positions):
            return True

    rotary, positions = Rotary(8, scaling=scaling), torch.arange(5)[None]
    with torch.inference_mode():
        found = rotary(positions, Turning())
    for one, right in zip(found, Rotary(8, scaling=scaling)(positions), strict=True):
        assert torch.equal(one, right)
    (table,) = rotary._tables.values()
    assert not table.is_inference()
