"""Output layer and loss in one operation against the two written out."""

import pytest
import torch
from torch import Tensor, nn

from glassformer.models import DecoderModel, ModelConfig
from glassformer.training import fused_loss
from glassformer.training.fused_loss import output_layer_loss, token_loss, without_output_layer
from glassformer.training.losses import label_smoothed_cross_entropy

PAD = 0
N, C, V = 13, 6, 11


@pytest.fixture
def hidden() -> Tensor:
    return torch.randn(N, C, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)


def layer_of(*, bias: bool) -> nn.Linear:
    torch.manual_seed(2)
    return nn.Linear(C, V, bias=bias).double()


def targets_of(n_ignored: int) -> Tensor:
    targets = torch.arange(N) % (V - 1) + 1
    targets[:n_ignored] = PAD
    return targets


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("n_ignored", [0, 4, N])
@pytest.mark.parametrize("chunk", [1, 3 * V, 10**6])
def test_loss_and_gradients_equal_those_of_logits(
    hidden: Tensor, bias: bool, smoothing: float, n_ignored: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused_loss, "CPU_CHUNK", chunk)
    layer, targets = layer_of(bias=bias), targets_of(n_ignored)
    wanted = [hidden, *layer.parameters()]
    written_out = label_smoothed_cross_entropy(layer(hidden), targets, smoothing=smoothing, ignore=PAD, reduction="sum")
    fused = output_layer_loss(hidden, layer, targets, smoothing=smoothing, ignore=PAD)
    torch.testing.assert_close(fused, written_out, rtol=1e-12, atol=1e-12)
    for ours, expected in zip(
        torch.autograd.grad(3 * fused, wanted), torch.autograd.grad(3 * written_out, wanted), strict=True
    ):
        torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-12)


def test_huge_logits_keep_loss_and_gradients_finite(hidden: Tensor) -> None:
    layer = layer_of(bias=False)
    loss = output_layer_loss(hidden * 1e4, layer, targets_of(0), smoothing=0.1, ignore=PAD)
    plain = label_smoothed_cross_entropy(layer(hidden * 1e4), targets_of(0), smoothing=0.1, reduction="sum")
    torch.testing.assert_close(loss, plain)
    assert torch.autograd.grad(loss, hidden)[0].isfinite().all()


def test_a_frozen_layer_gets_no_gradient(hidden: Tensor) -> None:
    layer = layer_of(bias=True).requires_grad_(False)
    output_layer_loss(hidden, layer, targets_of(2), smoothing=0.1, ignore=PAD).backward()
    assert layer.weight.grad is None
    assert hidden.grad is not None


def test_backward_twice_gives_the_same_gradient(hidden: Tensor) -> None:
    loss = output_layer_loss(hidden, layer_of(bias=False), targets_of(2), smoothing=0.1, ignore=PAD) * 2
    first, second = (torch.autograd.grad(loss, hidden, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


def test_under_autocast_the_products_are_bfloat16_and_the_gradients_float32(hidden: Tensor) -> None:
    layer, small = layer_of(bias=True).float(), hidden.detach().float().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = output_layer_loss(small, layer, targets_of(2), smoothing=0.1, ignore=PAD)
        plain = label_smoothed_cross_entropy(layer(small), targets_of(2), smoothing=0.1, ignore=PAD, reduction="sum")
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, plain, rtol=1e-2, atol=1e-2)
    ours, expected = (torch.autograd.grad(x, [small, layer.weight, layer.bias]) for x in (loss, plain))
    for one, other in zip(ours, expected, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other, rtol=0.05, atol=0.02)


def tiny_model() -> DecoderModel:
    torch.manual_seed(0)
    sizes = {"vocab_size": V, "n_decoder_layers": 1, "n_encoder_layers": 0, "d_model": 8, "n_heads": 2}
    return DecoderModel(ModelConfig(**sizes, head="language_model")).eval()


def test_a_model_without_its_output_layer_returns_hidden_states_and_is_restored() -> None:
    model, tokens = tiny_model(), torch.arange(4)[None]
    logits = model(tokens)
    with without_output_layer(model) as layer:
        hidden = model(tokens)
    assert layer is not None
    assert torch.equal(layer(hidden), logits)
    assert torch.equal(model(tokens), logits)


@pytest.mark.parametrize("is_watched", [False, True])
def test_loss_of_a_model_is_that_of_its_logits(is_watched: bool) -> None:
    model, tokens, targets = tiny_model(), torch.arange(5)[None], torch.tensor([[1, 2, PAD, 3, 4]])
    seen: list[Tensor] = []
    if is_watched:  # a hook on the output layer must see it called
        model.head.out_proj.register_forward_hook(lambda module, inputs, output: seen.append(output))
    loss = token_loss(model, lambda: model(tokens), targets, smoothing=0.1, ignore=PAD)
    plain = label_smoothed_cross_entropy(model(tokens), targets, smoothing=0.1, ignore=PAD, reduction="sum")
    torch.testing.assert_close(loss, plain)
    assert len(seen) == 2 * is_watched
