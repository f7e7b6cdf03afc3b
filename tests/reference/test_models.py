"""The hand-written backward of whole models, compared with finite differences; positions and masks."""

from dataclasses import replace

import numpy as np
import pytest

from glassformer import reference
from glassformer.reference.models import count_positions

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
        places.append(
            np.unravel_index(np.abs(gradient).argmax(), value.shape)
        )  # the largest gradient, which is not zero
        for place in places:
            low, high = value.copy(), value.copy()
            low[place] -= step
            high[place] += step
            numeric = (loss(state | {parameter: high}) - loss(state | {parameter: low})) / (2 * step)
            assert gradient[place] == pytest.approx(numeric, rel=1e-5, abs=1e-7), parameter


def test_positions_count_real_tokens_of_the_same_document():
    tokens = np.zeros((2, 5), dtype=int)
    mask = np.array([[False, True, True, True, True], [True, True, True, False, False]])
    assert count_positions(tokens).tolist() == [[0, 1, 2, 3, 4]] * 2
    assert count_positions(tokens, mask).tolist() == [[0, 0, 1, 2, 3], [0, 1, 2, 3, 3]]
    segments = np.array([[0, 0, 1, 1, 1], [0, 1, 1, 2, 3]])
    assert count_positions(tokens, None, segments).tolist() == [[0, 1, 0, 1, 2], [0, 0, 1, 0, 0]]


def test_a_decoder_does_not_see_later_tokens_and_an_encoder_does():
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 7, (1, 5))
    changed = tokens.copy()
    changed[0, -1] = (changed[0, -1] + 1) % 7
    for config, is_causal in ((SMALL, False), (replace(SMALL, n_encoder_layers=0, n_decoder_layers=1), True)):
        model = reference.build_model(config, random_state(config, rng))
        before, after = (model.forward(ids)[0, :-1] for ids in (tokens, changed))
        assert np.allclose(before, after) == is_causal
