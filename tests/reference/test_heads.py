"""Heads of the reference: pooling, unit length, and tied projections."""

import numpy as np
import pytest

from glassformer import reference
from glassformer.reference.heads import Head, Pool
from glassformer.reference.parameters import Parameters

HIDDEN = np.arange(24.0).reshape(2, 4, 3) + 1
REAL = np.array([[False, True, True, False], [True, True, True, True]])


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("first", [HIDDEN[0, 1], HIDDEN[1, 0]]),
        ("last", [HIDDEN[0, 2], HIDDEN[1, 3]]),
        ("mean", [HIDDEN[0, 1:3].mean(0), HIDDEN[1].mean(0)]),
    ],
)
def test_pooling_ignores_padding_forward_and_backward(kind, expected):
    pool = Pool(kind)
    np.testing.assert_allclose(pool.forward(HIDDEN, REAL), expected)
    gradient = pool.backward(np.ones((2, 3)))
    assert (gradient[~REAL] == 0).all()
    np.testing.assert_allclose(gradient.sum(1), 1)


def config_of(head, **options):
    return reference.Config(vocab_size=5, n_encoder_layers=1, d_model=3, n_heads=1, d_ff=4, head=head, **options)


def test_embeddings_have_unit_length_and_no_gradient_along_themselves():
    head = Head(Parameters({}), config_of("embedding", pooling="mean"), None)
    found = head.forward(HIDDEN, REAL)
    np.testing.assert_allclose((found**2).sum(-1), 1)
    np.testing.assert_allclose(head.backward(found), 0, atol=1e-12)
    assert np.abs(head.backward(np.ones_like(found))).max() > 1e-3


def test_a_tied_head_uses_the_token_table_scaled_and_adds_to_its_gradient():
    table = np.random.default_rng(0).standard_normal((5, 3))
    params = Parameters({"embeddings.tokens.weight": table, "head.out_proj.bias": np.arange(5.0)})
    config = config_of("language_model", tie="output", scale_output=True)
    head = Head(params.at("head"), config, params.at("embeddings.tokens"))
    np.testing.assert_allclose(head.forward(HIDDEN, None), HIDDEN @ table.T / 3**0.5 + np.arange(5.0))
    head.backward(np.ones((2, 4, 5)))
    expected = np.broadcast_to(HIDDEN.sum((0, 1)) / 3**0.5, (5, 3))
    np.testing.assert_allclose(params.grads["embeddings.tokens.weight"], expected)
