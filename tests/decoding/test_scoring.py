"""Scores of given texts equal the NumPy oracle's in batches of any size."""

import pytest
import torch

from glassformer import reference
from glassformer.decoding import GenerationConfig, generate, score_pairs, score_texts
from glassformer.decoding.scoring import score_continuations, score_long_texts
from glassformer.models import build_model, preset
from glassformer.progress import reporting
from oracle import random_model, twin


@pytest.mark.parametrize("batch_tokens", [1, 9, 1000])
def test_scores_of_pairs_and_texts_equal_the_oracles(batch_tokens):
    torch.manual_seed(0)
    marian, llama = random_model(preset("tiny-marian")), random_model(preset("tiny-llama"))
    sources, targets = [[5, 6], [7, 8, 9, 10], [11]], [[4], [], [12, 13, 14]]
    found = score_pairs(marian, sources, targets, begin=1, end=0, batch_tokens=batch_tokens)
    for source, target, scores in zip(sources, targets, found, strict=True):
        next_logs = reference.translates(twin(marian), torch.tensor(source).numpy())
        wanted = [*target, 0]
        prefixes = [[1, *target[:length]] for length in range(len(wanted))]
        expected = [next_logs(torch.tensor([p]).numpy())[0, t] for p, t in zip(prefixes, wanted, strict=True)]
        assert scores == pytest.approx(expected, abs=1e-5)
    texts = [[5, 6, 7], [8], [9, 10, 11, 12]]
    for text, scores in zip(texts, score_texts(llama, texts, batch_tokens=batch_tokens), strict=True):
        next_logs = reference.continues(twin(llama))
        expected = [next_logs(torch.tensor([text[:n]]).numpy())[0, text[n]] for n in range(1, len(text))]
        assert scores == pytest.approx(expected, abs=1e-5)


def test_scoring_a_generated_text_gives_its_log_probabilities():
    torch.manual_seed(1)
    model = random_model(preset("tiny-bart-base"))
    config = GenerationConfig(max_new_tokens=8)
    (written,) = generate(model, [[5, 6, 7]], config, begin=1, end=0, with_log_probs=True)[0]
    scores = score_pairs(model, [[5, 6, 7]], [written.tokens], begin=1, end=0)[0]
    assert scores[: len(written.log_probs)] == pytest.approx(written.log_probs, abs=1e-5)


def test_wrong_input_is_refused_by_name():
    with pytest.raises(ValueError, match="1 sources and 2 targets"):
        score_pairs(random_model(preset("tiny-marian")), [[1]], [[1], [2]], begin=1, end=0)
    with pytest.raises(ValueError, match="text 1 is empty"):
        score_texts(random_model(preset("tiny-llama")), [[1], []])


def test_wrong_ids_are_refused_before_they_reach_the_device():
    llama, marian = (build_model(preset(name)).to("meta") for name in ("tiny-llama", "tiny-marian"))
    for make, message in (
        (lambda: score_texts(llama, [[1], [2, 40]]), "text 1 holds the id 40: expected ids from 0 to 39"),
        (lambda: score_long_texts(llama, [[1, -3]], context=4, stride=2), "text 0 holds the id -3"),
        (lambda: score_pairs(marian, [[1], [99]], [[1], [2]], begin=1, end=0), "source 1 holds the id 99"),
        (lambda: score_pairs(marian, [[1], [2]], [[1], [99]], begin=1, end=0), "target 1 holds the id 99"),
        (lambda: score_pairs(marian, [[1]], [[1]], begin=99, end=0), "begin, end holds the id 99"),
    ):
        with pytest.raises(ValueError, match=message):
            make()


def test_scores_of_continuations_are_those_of_texts():
    model = random_model(preset("tiny-gpt2"))
    texts = [[3, 5, 7, 2, 9], [4, 4, 1], [8, 6]]
    whole = score_texts(model, texts)
    for batch_tokens in (1, 100):
        found = score_continuations(model, texts, [2, 1, 1], batch_tokens=batch_tokens)
        assert [total for total, _ in found] == pytest.approx([sum(whole[0][2:]), whole[1][1], whole[2][0]], abs=1e-5)
    ((best,),) = generate(model, [[3, 5]], GenerationConfig(max_new_tokens=3), end=-1)
    is_best = score_continuations(model, [[3, 5, *best.tokens], [3, 5, (best.tokens[0] + 1) % 20]], [3, 1])
    assert [one for _, one in is_best] == [True, False]
    limit = model.config.max_len
    assert score_continuations(model, [[1] * (limit + 1)], [1])[0][0] < 0
    with pytest.raises(ValueError, match=r"lengths\[0\]=2: expected 1 to 1, less than the text has"):
        score_continuations(model, [[1, 2]], [2])


def test_scoring_shows_how_far_it_is(capsys, monkeypatch):
    monkeypatch.setattr("glassformer.progress.PLAIN_EVERY", 0.0)
    model = random_model(preset("tiny-llama"))
    with reporting():
        score_long_texts(model, [[5, 6, 7, 8, 9]], context=2, stride=2, batch_tokens=2)
        score_texts(model, [[5, 6], [7, 8]], batch_tokens=2)
        score_continuations(model, [[5, 6], [7, 8]], [1, 1], batch_tokens=1)
    told = capsys.readouterr().err.splitlines()
    assert told[:3] == [f"scoring windows of text: {n} of 2" for n in range(3)]
    assert told[3:] == 2 * [f"scoring texts: {n} of 2" for n in range(3)]
