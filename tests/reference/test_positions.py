"""Sinusoids, rotary angles, ALiBi and T5's buckets."""

import numpy as np
import pytest

from glassformer.reference.config import Config
from glassformer.reference.parameters import Parameters
from glassformer.reference.positions import (
    RelativeBias,
    alibi,
    distance_ahead,
    rotary_angles,
    rotary_rates,
    sinusoids,
    turn,
)


@pytest.mark.parametrize("width", [6, 7])
def test_sinusoids_alternate_or_come_in_halves(width):
    table, halves = sinusoids(9, width), sinusoids(9, width, halves=True)
    assert table[0].tolist() == [0.0, 1.0] * (width // 2) + [0.0] * (width % 2)
    assert table[5, 2] == pytest.approx(np.sin(5 / 10000 ** (2 / width)))
    assert table[5, 3] == pytest.approx(np.cos(5 / 10000 ** (2 / width)))
    order = [*range(0, width, 2), *range(1, width, 2)]
    assert (halves == table[:, order]).all()


def test_rotation_makes_scores_depend_on_the_distance_only():
    rng = np.random.default_rng(0)
    query, key = rng.standard_normal((2, 1, 1, 1, 8))
    rates = rotary_rates(Config(vocab_size=1, d_model=8, n_heads=1))

    def score(at, other):
        one, two = (rotary_angles(np.array([[position]]), rates) for position in (at, other))
        return float((turn(query, one) * turn(key, two)).sum())

    assert score(3, 7) == pytest.approx(score(13, 17))
    assert score(3, 7) != pytest.approx(score(3, 8))
    angles = rotary_angles(np.array([[5]]), rates)
    np.testing.assert_allclose(turn(turn(query, angles), -angles), query)


def test_alibi_slopes_are_those_of_the_paper_also_between_powers_of_two():
    positions = np.array([[0, 1, 2]])
    bias = alibi(8, positions)
    assert bias.shape == (1, 8, 3, 3)
    np.testing.assert_allclose(-bias[0, :, 2, 1], [2.0**-n for n in range(1, 9)])
    assert (bias[0, :, 0, 2] == 2 * bias[0, :, 0, 1]).all()
    np.testing.assert_allclose(-alibi(6, positions)[0, :, 0, 1], [2.0**-n for n in (2, 4, 6, 8, 1, 3)])


@pytest.mark.parametrize(
    ("bidirectional", "first"),
    [(True, [0, 1, 2, 2, 2, 2, 2, 3]), (False, [0, 1, 2, 3, 4, 4, 5, 5, 5, 6, 6, 6, 6, 6, 7])],
)
def test_small_distances_have_their_own_bucket_and_larger_ones_share(bidirectional, first):
    bias = RelativeBias(Parameters({"weight": np.zeros((8, 2))}), max_distance=20, bidirectional=bidirectional)
    behind = [bias.bucket(-distance) for distance in range(100)]
    assert behind[: len(first)] == first
    assert set(behind[len(first) :]) == {first[-1]}
    ahead = [bias.bucket(distance) for distance in range(1, 100)]
    assert ahead == ([4 + bucket for bucket in behind[1:]] if bidirectional else [0] * 99)


def test_a_relative_bias_sums_the_gradients_of_equal_distances():
    params = Parameters({"weight": np.arange(16.0).reshape(8, 2)})
    bias = RelativeBias(params, max_distance=20, bidirectional=False)
    positions = np.array([[0, 1, 2]])
    scores = bias.forward(positions)
    assert distance_ahead(positions)[0, 2].tolist() == [-2, -1, 0]
    assert scores[0, 1, 2].tolist() == [5.0, 3.0, 1.0]  # head 1 of buckets 2, 1 and 0
    bias.backward(np.ones((1, 2, 3, 3)))
    assert params.grads["weight"][:, 0].tolist() == [6.0, 2.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
