"""The hand-written backward against finite differences, and the loss and optimizer against torch's."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from glassformer import reference
from glassformer.training import label_smoothed_cross_entropy

SMALL = reference.Config(vocab_size=7, n_encoder_layers=1, d_model=8, n_heads=2, d_ff=6, max_len=8)
CASES = {
    "encoder post layer relu": SMALL,
    "encoder pre mean_std gelu classes": replace(
        SMALL,
        norm="mean_std",
        norm_placement="pre",
        activation="gelu",
        head="sequence_class",
        n_labels=3,
        pooling="mean",
    ),
    "encoder embedding albert": replace(
        SMALL,
        n_encoder_layers=3,
        share_layers=True,
        embedding_width=4,
        embedding_norm=True,
        positions="learned",
        token_types=2,
        head="embedding",
        head_transform=True,
    ),
    "decoder llama": replace(
        SMALL,
        n_encoder_layers=0,
        n_decoder_layers=2,
        n_heads=4,
        n_kv_heads=2,
        head_dim=4,
        norm="rms",
        norm_placement="pre",
        activation="silu",
        gated=True,
        positions="rotary",
        qk_norm=True,
        head="language_model",
        tie="output",
    ),
    "both t5": replace(
        SMALL,
        n_decoder_layers=1,
        norm="rms",
        norm_placement="pre",
        activation="gelu_tanh",
        gated=True,
        positions="relative",
        relative_buckets=4,
        relative_max_distance=5,
        head="language_model",
        tie="all",
        scale_output=True,
    ),
    "both alibi window": replace(SMALL, n_decoder_layers=1, positions="alibi", sliding_window=2, head="language_model"),
}


def random_state(config, rng):
    shapes = reference.parameter_shapes(config)
    return {name: float("norm.weight" in name) + 0.4 * rng.standard_normal(shape) for name, shape in shapes.items()}


@pytest.mark.parametrize("name", CASES)
def test_backward_matches_finite_differences(name):
    config, rng = CASES[name], np.random.default_rng(0)
    state = random_state(config, rng)
    tokens = rng.integers(0, config.vocab_size, (2, 4))
    mask = np.array([[True] * 4, [True, True, True, False]])
    both = config.n_encoder_layers and config.n_decoder_layers
    inputs = (tokens, tokens[:, :3], mask, mask[:, :3]) if both else (tokens, mask)
    direction = None

    def loss(values):
        nonlocal direction
        output = reference.build_model(config, values).forward(*inputs)
        if direction is None:
            direction = rng.standard_normal(output.shape)
        return float((output * direction).sum())

    loss(state)
    model = reference.build_model(config, state)
    model.forward(*inputs)
    model.backward(direction)
    step = 1e-6
    for parameter, value in state.items():
        gradient = model.params.grads[parameter]
        places = [tuple(rng.integers(0, size) for size in value.shape) for _ in range(2)]
        places.append(np.unravel_index(np.abs(gradient).argmax(), value.shape))  # one that surely is not zero
        for place in places:
            low, high = value.copy(), value.copy()
            low[place] -= step
            high[place] += step
            numeric = (loss(state | {parameter: high}) - loss(state | {parameter: low})) / (2 * step)
            assert gradient[place] == pytest.approx(numeric, rel=1e-5, abs=1e-7), parameter


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
@pytest.mark.parametrize("ignore", [None, 0])
def test_loss_and_its_gradient_equal_torchs(smoothing, ignore):
    logits = torch.randn(3, 5, 7, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, 7, (3, 5))
    expected = F.cross_entropy(
        logits.flatten(0, 1),
        targets.flatten(),
        label_smoothing=smoothing,
        ignore_index=-100 if ignore is None else ignore,
    )
    expected.backward()
    loss, gradient = reference.label_smoothed_cross_entropy(
        logits.detach().numpy(), targets.numpy(), smoothing=smoothing, ignore=ignore
    )
    ours = label_smoothed_cross_entropy(logits, targets, smoothing=smoothing, ignore=ignore)
    assert loss == pytest.approx(expected.item(), abs=1e-12)
    assert ours.item() == pytest.approx(expected.item(), abs=1e-12)
    np.testing.assert_allclose(gradient, logits.grad.numpy(), atol=1e-12)


def test_a_batch_of_padding_alone_has_no_loss_and_no_gradient():
    logits = torch.randn(2, 3, 5, requires_grad=True)
    loss = label_smoothed_cross_entropy(logits, torch.zeros(2, 3, dtype=torch.long), ignore=0, smoothing=0.1)
    loss.backward()
    assert loss.item() == 0
    assert not logits.grad.any()
    value, gradient = reference.label_smoothed_cross_entropy(
        logits.detach().numpy(), np.zeros((2, 3), dtype=int), ignore=0, smoothing=0.1
    )
    assert value == 0
    assert not gradient.any()


def test_adam_equals_torchs():
    start = torch.randn(4, 3, dtype=torch.float64)
    parameter = torch.nn.Parameter(start.clone())
    theirs = torch.optim.Adam([parameter], lr=0.01, betas=(0.9, 0.98), eps=1e-9)
    values = {"w": start.numpy().copy()}
    ours = reference.Adam(values, lr=0.01)
    for _ in range(5):
        grad = torch.randn(4, 3, dtype=torch.float64)
        parameter.grad = grad.clone()
        theirs.step()
        ours.step({"w": grad.numpy()})
    np.testing.assert_allclose(values["w"], parameter.detach().numpy(), atol=1e-12)
