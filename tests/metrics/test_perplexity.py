"""Perplexity and bits per byte."""

import math
import random

import pytest

from glassformer.metrics.perplexity import compressed_bits, score_perplexity


def test_uniform_predictions_have_the_perplexity_of_the_vocabulary_size():
    scores = score_perplexity(10 * math.log(8), n_tokens=10, n_bytes=20)
    assert list(scores.values) == ["bits_per_byte", "loss", "perplexity"]
    assert scores["perplexity"] == pytest.approx(8)
    assert scores["loss"] == pytest.approx(math.log(8))
    assert scores["bits_per_byte"] == pytest.approx(10 * 3 / 20)


def test_character_models_report_the_loss_first():
    assert next(iter(score_perplexity(1.0, 2, 3, by_character=True).values)) == "loss"


def test_a_very_bad_model_has_a_finite_perplexity_and_no_text_is_refused():
    assert math.isfinite(score_perplexity(1e9, 1, 1)["perplexity"])
    with pytest.raises(ValueError, match="there is no text to score on"):
        score_perplexity(0.0, 0, 0)


def test_a_compressor_cannot_shorten_noise_that_it_has_not_seen():
    noise = "".join(random.Random(0).choices([chr(code) for code in range(128)], k=4000))
    assert compressed_bits([noise]) == pytest.approx(7, abs=0.7)
    assert compressed_bits([noise], after=[noise]) < 0.5
    assert compressed_bits(["abcd" * 1000]) < 0.5
    with pytest.raises(ValueError, match="there is no text to compress"):
        compressed_bits([])
