"""The mask filler: the mask token, the tokens around a text, and lines with blanks."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.data.readers.plain_texts import PlainText
from glassformer.pipelines.blanks import BlankWord, best_choices
from glassformer.pipelines.encoder_pipeline import Reader
from glassformer.pipelines.mask_filler import MASK, SHOWN_WORDS, MaskFiller, mask_of, surrounding_tokens, words_of
from glassformer.pipelines.pipeline import LineRequest
from glassformer.text.tokenizer import END, UNKNOWN
from pipelines.tiny_pipelines import make, pretrained, tokenizer


def test_the_mask_token_is_that_of_the_tokenizer():
    masked = tokenizer(MASK)
    assert mask_of(Reader.own(masked)) == masked.special_id(MASK)
    assert mask_of(Reader.own(tokenizer())) == UNKNOWN
    with pytest.raises(ValueError, match="the tokenizer has no mask token: expected a mask_token in its files"):
        mask_of(Reader(pretrained(), {}))


def test_blanks_are_filled_with_words_and_other_lines_stay():
    tool = make(MaskFiller)
    filled, unchanged, blank = tool.run(["the ___ cat", "the old cat", ""])
    assert "___" not in filled
    assert filled.endswith(" cat")
    assert (unchanged, blank) == ("the old cat", "")
    special = tool.reader.tokenizer.special_ids
    assert special.isdisjoint(words_of(tool.reader, tool.model).tolist())


def test_the_frame_is_the_special_tokens_around_a_text():
    frame = surrounding_tokens(make(MaskFiller).reader)
    assert (list(frame.before), list(frame.after)) == ([], [END])
    assert make(MaskFiller).longest == 63


def test_scores_are_the_same_in_every_call():
    tool, texts = make(MaskFiller), [PlainText("the old cat sees the big saw"), PlainText("it is red.")]
    scores = tool.score(texts)
    assert scores == tool.score(texts)
    assert scores["loss"] > 0


def test_words_for_blanks_have_the_probabilities_of_a_plain_forward_pass():
    tool = make(MaskFiller)
    ((first, second),) = tool.words_for(["the ___ cat ___"], n=3)
    words = words_of(tool.reader, tool.model)
    tokens = tool.reader.tokenizer
    ids = [*tokens.encode("the")[:1], UNKNOWN, *tokens.encode(" cat"), UNKNOWN, END]
    places = [place for place, token in enumerate(ids) if token == UNKNOWN]
    with torch.inference_mode():
        chances = tool.model(torch.tensor([ids]))[0, places][:, words].softmax(-1)
    for found, right in zip((first, second), chances, strict=True):
        assert [one.probability for one in found] == pytest.approx(right.topk(3).values.tolist(), abs=1e-6)
        assert found[0].word == tokens.tokens([int(words[right.argmax()])])[0].strip()
    (everything,) = tool.words_for("the ___", n=10**6)
    texts = {token.strip() for token in tokens.tokens(words.tolist())}
    assert [one.word for one in everything] == list(dict.fromkeys(one.word for one in everything))
    assert {one.word for one in everything} == texts


def test_at_least_one_word_must_be_asked_for():
    with pytest.raises(ValueError, match="n=0: expected 1 or more words for each blank"):
        make(MaskFiller).words_for("the ___", n=0)


def test_answers_have_alternatives_and_the_probabilities_of_their_words():
    tool, lines = make(MaskFiller), ["a ___ sees a ___", "no blank", ""]
    answer, *others = tool.answer_lines(lines, LineRequest(n_best=4, with_scores=True))
    one, two = tool.words_for(lines[:1], n=50)[0]
    pairs = sorted(((a.probability * b.probability) ** 0.5, f"a {a.word} sees a {b.word}") for a in one for b in two)
    pairs.reverse()
    assert list(answer.texts) == [text for _, text in pairs[:4]]
    assert list(answer.scores) == pytest.approx([chance for chance, _ in pairs[:4]], abs=1e-6)
    assert answer.line == answer.record["text"] == answer.texts[0] == tool.fill(lines[0])
    assert [choice["text"] for choice in answer.record["n_best"]] == list(answer.texts)
    assert [len(words) for words in answer.record["blanks"]] == [SHOWN_WORDS] * 2
    for line, found in zip(lines[1:], others, strict=True):
        assert (found.line, found.texts, found.scores) == (line, (line,), (None,))
        assert found.record == {"text": line, "blanks": [], "n_best": []}
    (plain,) = tool.answer_lines(lines[:1], LineRequest())
    assert plain.record == {"text": answer.line}


def test_the_best_choices_of_words_are_ordered_by_their_joint_probability():
    blanks = [[BlankWord("a", 0.5), BlankWord("b", 0.25)], [BlankWord("c", 0.75)]]
    assert [words for words, _ in best_choices(blanks, 3)] == [("a", "c"), ("b", "c")]
    assert [mean for _, mean in best_choices(blanks, 3)] == pytest.approx([0.375**0.5, 0.1875**0.5])
    assert best_choices([], 3) == [((), 1.0)]


@settings(deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 10**6), min_size=1, max_size=5, unique=True), min_size=1, max_size=4),
    st.integers(1, 30),
)
def test_the_best_choices_are_those_of_all_combinations(numbers, n):
    blanks = [[BlankWord(str(x), x / 10**6) for x in sorted(some, reverse=True)] for some in numbers]
    combinations = [
        (math.prod(word.probability for word in words) ** (1 / len(blanks)), words)
        for words in itertools.product(*blanks)
    ]
    right = sorted((chance for chance, _ in combinations), reverse=True)[:n]
    found = best_choices(blanks, n)
    assert [mean for _, mean in found] == pytest.approx(right)
    assert len({words for words, _ in found}) == len(found)


def test_many_blanks_have_as_many_choices_as_asked_for():
    blanks = [[BlankWord(str(number), 1 / (number + 2)) for number in range(256)]] * 100
    found = best_choices(blanks, 256)
    assert len(found) == 256
    assert found[0] == (("0",) * 100, pytest.approx(0.5))
