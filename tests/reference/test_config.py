"""The config of the reference: derived values, and unknown fields."""

from dataclasses import replace

import pytest

from glassformer import reference


def test_an_unknown_field_is_refused():
    with pytest.raises(ValueError, match="neither handled"):
        reference.Config.from_dict({"vocab_size": 3, "brand_new_option": 1})


def test_derived_values_follow_their_fields_or_the_papers_defaults():
    config = reference.Config(vocab_size=3, d_model=64, n_heads=4, n_encoder_layers=1)
    assert (config.kv_heads, config.head_size, config.scale, config.table_width) == (4, 16, 0.25, 64)
    assert (config.pool_by, config.has_final_norm) == ("first", False)
    other = replace(config, n_kv_heads=2, head_dim=4, embedding_width=8, n_decoder_layers=1, norm_placement="pre")
    assert (other.kv_heads, other.head_size, other.scale, other.table_width) == (2, 4, 0.5, 8)
    assert (other.pool_by, other.has_final_norm) == ("last", True)
    last = replace(other, attention_scale=1.0, pooling="mean", final_norm=False)
    assert (last.scale, last.pool_by, last.has_final_norm) == (1.0, "mean", False)


def test_exempt_fields_are_ignored():
    assert reference.Config.from_dict({"vocab_size": 3, "dropout": 0.5}) == reference.Config(vocab_size=3)
