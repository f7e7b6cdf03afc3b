"""T5: the feed-forward kind, and when the output is tied or scaled."""

import pytest

from glassformer.checkpoint.hf.t5 import read_config, table, write_config

LM_HEAD = frozenset({"lm_head.weight"})


@pytest.mark.parametrize(
    ("values", "names", "tie", "is_scaled"),
    [
        ({}, frozenset(), "all", True),
        ({"tie_word_embeddings": False}, LM_HEAD, "embeddings", False),
        ({"tie_word_embeddings": True, "scale_decoder_outputs": False}, frozenset(), "all", False),
        ({"tie_word_embeddings": False, "scale_decoder_outputs": True}, LM_HEAD, "embeddings", True),
    ],
)
def test_the_output_is_tied_and_scaled_as_old_and_new_files_say(values, names, tie, is_scaled):
    config = read_config("t5", values, names)
    assert (config.tie, config.scale_output) == (tie, is_scaled)


@pytest.mark.parametrize(
    ("projection", "activation", "gated"), [("relu", "relu", False), ("gated-gelu", "gelu_tanh", True)]
)
def test_the_feed_forward_kind_gives_the_activation_and_the_gate(projection, activation, gated):
    config = read_config("t5", {"feed_forward_proj": projection, "d_ff": 24, "num_layers": 1}, frozenset())
    assert (config.activation, config.gated) == (activation, gated)
    assert read_config("t5", write_config("t5", config), frozenset()) == config
    names = {rule.hf_name for rule in table(config)}
    prefix = "encoder.block.0.layer.1.DenseReluDense"
    assert {f"{prefix}.{'wi_0' if gated else 'wi'}.weight", f"{prefix}.wo.weight"} <= names
