"""Softmax, masks and attention of the reference, compared with torch."""

import numpy as np
import torch
import torch.nn.functional as F

from glassformer.reference.attention import (
    ScaledDotProduct,
    allowed_pairs,
    log_softmax,
    masked_softmax,
    merge_heads,
    softmax,
    split_heads,
)


def test_softmax_and_its_logarithm_do_not_overflow():
    scores = np.array([[1e4, 1e4 - 1.0, -1e4], [0.0, 1.0, 2.0]])
    expected = torch.from_numpy(scores)
    np.testing.assert_allclose(softmax(scores), expected.softmax(-1))
    np.testing.assert_allclose(log_softmax(scores), expected.log_softmax(-1))


def test_masked_softmax_spreads_over_allowed_entries_and_gives_zeros_without_any():
    scores = np.array([[1.0, 5.0, 2.0], [1.0, np.inf, 2.0], [1.0, 2.0, 3.0]])
    allowed = np.array([[True, True, True], [True, False, True], [False, False, False]])
    found = masked_softmax(scores, allowed)
    np.testing.assert_allclose(found[0], softmax(scores[0]))
    np.testing.assert_allclose(found[1, [0, 2]], softmax(np.array([1.0, 2.0])))
    assert found[1, 1] == 0
    assert (found[2] == 0).all()


def test_a_pair_is_allowed_only_if_every_mask_allows_it():
    positions = np.arange(4)[None]

    def rows(**options):
        return ["".join("x" if pair else "." for pair in row) for row in allowed_pairs(positions, **options)[0, 0]]

    assert rows() == ["xxxx"] * 4
    assert rows(causal=True) == ["x...", "xx..", "xxx.", "xxxx"]
    assert rows(window=2) == ["xx..", "xxx.", ".xxx", "..xx"]
    assert rows(real=np.array([[True, True, True, False]])) == ["xxx."] * 4
    assert rows(segments=np.array([[0, 0, 1, 1]]), causal=True) == ["x...", "xx..", "..x.", "..xx"]


def test_heads_are_split_and_merged_without_loss():
    x = np.arange(24.0).reshape(1, 3, 8)
    heads = split_heads(x, 2)
    assert heads.shape == (1, 2, 3, 4)
    assert heads[0, 1, 0].tolist() == [4.0, 5.0, 6.0, 7.0]
    assert (merge_heads(heads) == x).all()


def test_scaled_dot_product_and_its_gradients_equal_torchs():
    generator = torch.Generator().manual_seed(0)
    q, k, v, bias, dout = (
        torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
        for shape in ((2, 3, 4, 5), (2, 3, 6, 5), (2, 3, 6, 5), (2, 3, 4, 6), (2, 3, 4, 5))
    )
    allowed = torch.ones(2, 1, 4, 6, dtype=torch.bool)
    allowed[1, :, :, 4:] = False
    expected = F.scaled_dot_product_attention(q, k, v, bias.masked_fill(~allowed, -torch.inf), scale=0.3)
    expected.backward(dout)
    core = ScaledDotProduct(0.3)
    found = core.forward(*(x.detach().numpy() for x in (q, k, v, allowed, bias)))
    np.testing.assert_allclose(found, expected.detach().numpy(), atol=1e-12)
    for gradient, tensor in zip(core.backward(dout.detach().numpy()), (q, k, v, bias), strict=True):
        np.testing.assert_allclose(gradient, tensor.grad.numpy(), atol=1e-12)
