import numpy as np
import pytest

from glassformer.metrics.token_accuracy import score_token_accuracy, score_unigram_baseline


def test_the_loss_is_per_token_and_the_accuracy_in_percent():
    scores = score_token_accuracy(6.0, 3, 4)
    assert (scores["loss"], scores["accuracy"]) == (1.5, 75.0)


def test_nothing_to_guess_is_an_error():
    with pytest.raises(ValueError, match="nothing to guess"):
        score_token_accuracy(0.0, 0, 0)


def test_the_baseline_guesses_the_commonest_token_that_was_seen():
    seen, true = [np.array([2, 2, 1])], [np.array([2, 0, 2, 2])]
    scores = score_unigram_baseline(seen, true, vocab_size=3)
    assert scores["accuracy"] == 75.0
    # Counts with one added to each: 1, 2, 3 of 6.
    assert scores["loss"] == pytest.approx(-(3 * np.log(3 / 6) + np.log(1 / 6)) / 4)
