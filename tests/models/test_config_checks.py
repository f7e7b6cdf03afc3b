"""Values of different config fields that contradict each other are refused by name."""

import pytest

from glassformer.models import ModelConfig, preset

LONG = {"rope_scaling": "longrope", "rope_original_len": 8, "rope_short_divisors": (1.0, 1.0)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_width": 3}, "rope_width=3: expected an even number of at most 4"),
        ({"rope_width": 6}, "rope_width=6: expected an even number of at most 4"),
        ({"positions": "alibi", "rope_width": 2}, "rope_width=2 with positions='alibi': expected positions='rotary'"),
        ({"positions": "none", "rope_scaling": "linear"}, "rope_scaling='linear' with positions='none'"),
        ({"rope_scaling": "llama3"}, "rope_original_len=None with rope_scaling='llama3': expected 2 or more"),
        (
            {"rope_scaling": "llama3", "rope_original_len": 8, "rope_high_rotations": 1.0},
            "rope_high_rotations=1.0: expected more than rope_low_rotations, 1.0",
        ),
        (
            {"rope_scaling": "yarn", "rope_original_len": 8, "rope_theta": 1.0},
            "rope_theta=1.0 with rope_scaling='yarn'",
        ),
        (LONG, "rope_long_divisors=None with rope_scaling='longrope'"),
        (LONG | {"rope_long_divisors": (1.0,)}, "rope_long_divisors=.*: expected 2 numbers above 0"),
        (LONG | {"rope_long_divisors": (1.0, -1.0)}, "rope_long_divisors=.*: expected 2 numbers above 0"),
        ({"rope_long_divisors": (1.0, 1.0)}, "expected divisors with 'longrope' only"),
    ],
)
def test_rotary_settings_that_contradict_each_other_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        preset("tiny-llama", **changes)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("tiny-llama", {"expert_d_ff": 8}, "expert_d_ff=8 with n_experts=0: expected experts"),
        ("tiny-llama", {"shared_expert_d_ff": 8}, "shared_expert_d_ff=8 with n_experts=0: expected experts"),
        ("tiny-llama", {"dense_layers": (0,)}, r"dense_layers=\(0,\) with n_experts=0: expected experts"),
        ("tiny-mixtral", {"experts_per_token": 5}, "experts_per_token=5: expected at most n_experts, 4"),
        ("tiny-mixtral", {"dense_layers": (2,)}, r"dense_layers=\(2,\): expected ascending numbers below 2"),
        ("tiny-mixtral", {"dense_layers": (0,), "share_layers": True}, "with share_layers=True: expected one of them"),
        ("tiny-mixtral", {"expert_balance": -1.0}, "expert_balance=-1.0: expected 0 or more"),
        ("tiny-bert-base", {"n_experts": 4}, "n_experts=4 for kind 'encoder': expected 0, or a decoder"),
        ("tiny-t5-small", {"n_experts": 4}, "n_experts=4 for kind 'encoder_decoder': expected 0, or a decoder"),
    ],
)
def test_settings_of_experts_that_contradict_each_other_are_refused(name, changes, message):
    with pytest.raises(ValueError, match=message):
        preset(name, **changes)


def test_a_config_needs_a_layer():
    with pytest.raises(ValueError, match="n_encoder_layers=0 and n_decoder_layers=0: expected at least one layer"):
        ModelConfig(vocab_size=3)
