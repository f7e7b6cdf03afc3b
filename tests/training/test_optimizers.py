"""Muon and the grouping of parameters for Adam and AdamW."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from glassformer.models import DecoderModel, ModelConfig
from glassformer.training.bf16_linear import bf16_matmuls
from glassformer.training.optimizers import (
    MARGIN,
    QUINTICS,
    Muon,
    _orthogonalize_by_grams,
    make_optimizer,
    orthogonalize,
)
from glassformer.training.train_config import TrainConfig

SMALL = ModelConfig(vocab_size=23, n_decoder_layers=2, d_model=16, n_heads=4, d_ff=24, head="language_model")
MUON = TrainConfig(optimizer="muon", lr=0.01, weight_decay=0.1)


def make(config: TrainConfig):
    torch.manual_seed(0)
    model = DecoderModel(SMALL)
    return model, make_optimizer(model, config)


def give_gradients(model, seed=1):
    random = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=random)


@given(st.integers(1, 40), st.integers(1, 40), st.sampled_from([1e-15, 1e-3, 1.0, 1e15]))
def test_orthogonalize_moves_singular_values_near_one_and_keeps_directions(n_rows, n_columns, scale):
    random = torch.Generator().manual_seed(n_rows * 41 + n_columns)
    n = min(n_rows, n_columns)
    left = torch.linalg.qr(torch.randn(n_rows, n, generator=random)).Q
    right = torch.linalg.qr(torch.randn(n_columns, n, generator=random)).Q
    values = torch.linspace(0.1, 1, n)
    matrix = scale * (left * values) @ right.T
    found = orthogonalize(matrix[None])[0]
    assert found.shape == matrix.shape
    inside = left.T @ found @ right
    assert ((inside.diagonal() > 0.6) & (inside.diagonal() < 1.3)).all()
    torch.testing.assert_close(inside, torch.diag(inside.diagonal()), atol=1e-4, rtol=0)


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.05])
def test_orthogonalize_is_stable_in_bfloat16_for_rank_one(noise):
    """In bfloat16, which GPUs and CPUs with AMX use, rounding may raise a singular value above 1."""
    for seed in range(20):
        random = torch.Generator().manual_seed(seed)
        left, right = torch.randn(16 + seed, 1, generator=random), torch.randn(1, 40, generator=random)
        matrix = left @ right + noise * torch.randn(16 + seed, 40, generator=random)
        found = orthogonalize(matrix[None].bfloat16())[0]
        assert torch.linalg.matrix_norm(found.float(), 2) < 1.4


@pytest.mark.parametrize("has_amx", [True, False])
def test_in_bf16_a_cpu_with_amx_orthogonalizes_in_bf16(monkeypatch, has_amx):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: has_amx)
    matrices = torch.randn(2, 24, 8)
    assert torch.equal(orthogonalize(matrices), _orthogonalize_by_grams(matrices))
    with bf16_matmuls():
        found = orthogonalize(matrices)
        assert orthogonalize(matrices.double()).dtype == torch.float64
    assert found.dtype == torch.float32
    assert torch.equal(found, found.bfloat16().float()) == has_amx


@pytest.mark.parametrize("shape", [(3, 24, 8), (3, 8, 24), (2, 8, 13)])
@pytest.mark.parametrize("smallest", [1.0, 1e-2, 1e-4, 0.0])
def test_gram_matrices_alone_give_the_same_result(shape, smallest):
    """Also for singular values that are lost in the rounding of the Gram matrix."""
    random = torch.Generator().manual_seed(0)
    n = min(shape[1:])
    left = torch.linalg.qr(torch.randn(shape[0], shape[1], n, generator=random)).Q
    right = torch.linalg.qr(torch.randn(shape[0], shape[2], n, generator=random)).Q
    matrices = (left * torch.linspace(smallest, 1, n)) @ right.mT
    exact = orthogonalize_plainly(matrices.double())
    for found in (orthogonalize(matrices), _orthogonalize_by_grams(matrices)):
        torch.testing.assert_close(found.double(), exact, atol=2e-4, rtol=0)
    torch.testing.assert_close(_orthogonalize_by_grams(matrices.double()), exact, atol=1e-9, rtol=0)


def orthogonalize_plainly(matrices):
    """The definition: the polynomials act on the singular values."""
    left, values, right = torch.linalg.svd(matrices, full_matrices=False)
    values = values / values.pow(4).sum(-1, keepdim=True).pow(0.25) / MARGIN
    for a, b, c in QUINTICS:
        values = values * (a + b * values**2 + c * values**4)
    return (left * values[..., None, :]) @ right


@pytest.mark.parametrize("shape", [(1, 4, 6), (1, 4, 9), (1, 9, 4)])
def test_orthogonalize_of_zeros_is_zero(shape):
    assert (orthogonalize(torch.zeros(shape)) == 0).all()


def test_matrices_of_one_shape_do_not_mix():
    matrices = torch.randn(3, 5, 8)
    alone = torch.stack([orthogonalize(one[None])[0] for one in matrices])
    torch.testing.assert_close(orthogonalize(matrices), alone)


def test_muon_gets_only_the_matrices_of_the_layers():
    model, optimizer = make(MUON)
    assert isinstance(optimizer, Muon)
    by_muon = {id(matrix) for matrix in optimizer.matrices}
    for name, parameter in model.named_parameters():
        assert (id(parameter) in by_muon) == ("layers" in name and parameter.dim() == 2), name
    rest = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    assert len(rest) + len(by_muon) == len(list(model.parameters()))


def test_a_matrix_moves_by_its_orthogonal_momentum_and_decays():
    model, optimizer = make(MUON)
    matrix = optimizer.matrices[0]
    before, kept = matrix.detach().clone(), torch.zeros_like(matrix)
    for seed in (1, 2):
        give_gradients(model, seed)
        kept = 0.95 * kept + 0.05 * matrix.grad
        ahead = 0.05 * matrix.grad + 0.95 * kept
        step = 0.2 * max(matrix.shape) ** 0.5 * orthogonalize(ahead[None])[0]
        before = before * (1 - 0.01 * 0.1) - 0.01 * step
        optimizer.step()
    torch.testing.assert_close(matrix.detach(), before)


def test_other_parameters_get_adamw_updates():
    (by_muon, muon), (by_adam, adam) = make(MUON), make(replace(MUON, optimizer="adamw"))
    known = {name for name, parameter in by_muon.named_parameters() if any(parameter is m for m in muon.matrices)}
    for _ in range(3):
        give_gradients(by_muon)
        give_gradients(by_adam)
        muon.step()
        adam.step()
    for (name, one), two in zip(by_muon.named_parameters(), by_adam.parameters(), strict=True):
        assert torch.equal(one, two) == (name not in known), name


def test_parameters_without_gradient_do_not_change():
    torch.manual_seed(0)
    model = DecoderModel(SMALL)
    frozen, unused = [layer.self_attn.q_proj.weight for layer in model.decoder.layers]
    frozen.requires_grad_(False)
    optimizer = make_optimizer(model, MUON)
    give_gradients(model)
    unused.grad = None
    before = [frozen.clone(), unused.detach().clone()]
    optimizer.step()
    assert torch.equal(frozen, before[0])
    assert torch.equal(unused, before[1])


@pytest.mark.parametrize("momentum", [-0.1, 1.0])
def test_momentum_must_be_below_one(momentum):
    with pytest.raises(ValueError, match="momentum"):
        TrainConfig(momentum=momentum)
