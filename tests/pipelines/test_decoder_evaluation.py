"""Perplexity and multiple choice of a decoder, compared with HF."""

import math
import random

import pytest
import torch

from checkpoint import hf_models
from glassformer.data.readers.multiple_choice import MultipleChoice
from glassformer.pipelines.decoder_evaluation import (
    encode_plain,
    score_multiple_choice,
    score_texts_by_perplexity,
    window_of,
)
from glassformer.pipelines.load import load
from pipelines.hf_folders import save_tokenizer

TEXTS = ["the cat sat on the mat . the dog sat on a cat . " * 3, "a b c d"]
BEGIN = 2


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    draw, class_name = hf_models.DECODERS["llama"]
    theirs = hf_models.make(draw(random.Random(1)), class_name, 1)
    theirs.save_pretrained(folder)
    save_tokenizer(folder)
    return load(folder), theirs


def log_probs(theirs, ids):
    """Return HF's log-probability of each token after the first."""
    with torch.no_grad():
        logits = theirs(torch.tensor([ids])).logits[0].double()
    return logits.log_softmax(-1)[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0]


def test_short_texts_have_the_perplexity_that_hf_computes(both):
    ours, theirs = both
    ids = [BEGIN, *encode_plain(ours, TEXTS[1])]
    found = score_texts_by_perplexity(ours, TEXTS[1:])
    nats = -log_probs(theirs, ids).sum().item()
    assert found["loss"] == pytest.approx(nats / (len(ids) - 1), rel=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(nats / (len(ids) - 1)), rel=1e-5)
    assert found["bits_per_byte"] == pytest.approx(nats / math.log(2) / len(TEXTS[1]), rel=1e-5)


def test_a_long_text_is_read_in_strides(both):
    """As in HF's guide to perplexity: each window scores only the tokens that the one before has not."""
    ours, theirs = both
    ids = [BEGIN, *encode_plain(ours, TEXTS[0])]
    context, stride, scored, nats = 8, 3, 0, 0.0
    while scored < len(ids) - 1:
        end = min(max(scored + stride, context), len(ids) - 1)
        begin = max(end - context, 0)
        nats -= log_probs(theirs, ids[begin : end + 1])[scored - begin :].sum().item()
        scored = end
    found = score_texts_by_perplexity(ours, TEXTS[:1], context=context, stride=stride)
    assert found["loss"] == pytest.approx(nats / (len(ids) - 1), rel=1e-5)


def test_the_choice_with_the_highest_log_probability_is_the_answer(both):
    ours, theirs = both
    choices = ("cat", "dog sat", "the mat on a")
    scores = []
    for choice in choices:
        ids = [BEGIN, *encode_plain(ours, f"the cat sat {choice}")]
        scores.append(log_probs(theirs, ids)[3:].sum().item())
    best = scores.index(max(scores))
    per_byte = [score / len(choice) for score, choice in zip(scores, choices, strict=True)]
    for answer in range(3):
        found = score_multiple_choice(ours, [MultipleChoice("the cat sat", choices, answer)])
        assert found["accuracy"] == 100 * (answer == best)
        assert found["accuracy_per_byte"] == 100 * (answer == per_byte.index(max(per_byte)))


def test_a_question_that_is_too_long_keeps_its_end(both):
    ours, _ = both
    question = "the cat sat on " * 20  # the context of the model is 28 tokens
    one = score_multiple_choice(ours, [MultipleChoice(question, ("cat", "dog"), 0)])
    two = score_multiple_choice(ours, [MultipleChoice("dog " + question, ("cat", "dog"), 0)])
    assert one.values == two.values


def test_the_windows_fit_the_model(both):
    ours, _ = both
    assert window_of(ours, None, None) == (28, 14)
    assert window_of(ours, 10, None) == (10, 5)
    with pytest.raises(ValueError, match="context=29: expected 1 to 28"):
        window_of(ours, 29, None)
    with pytest.raises(ValueError, match="stride=11: expected 1 to 10"):
        window_of(ours, 10, 11)


def test_nothing_to_score_on_is_an_error(both):
    with pytest.raises(ValueError, match="no questions"):
        score_multiple_choice(both[0], [])
    with pytest.raises(ValueError, match="no text to score on"):
        score_texts_by_perplexity(both[0], [""])
