"""The extractor: the best span of a text, and its places."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from glassformer.pipelines.extractor import Extractor, best_span, span_places
from glassformer.text import Tokenizer
from glassformer.text.encoded import Encoded
from pipelines.tiny_pipelines import make

TOKENIZER = Tokenizer.train(["the cat saw the old dog in the garden"] * 3, 300)


words = st.lists(
    st.sampled_from(["the", "cat", "saw", "old", "dog", "in", "garden", "é"]), min_size=1, max_size=30
).map(" ".join)


@given(words, st.data())
def test_the_tokens_of_a_span_have_its_characters(context, draw):
    (read,) = TOKENIZER.offsets_batch([("the cat", context)])
    parts = context.split()
    first = draw.draw(st.integers(0, len(parts) - 1))
    last = draw.draw(st.integers(first, len(parts) - 1))
    start = len(" ".join(parts[:first])) + bool(first)
    end = start + len(" ".join(parts[first : last + 1]))
    begin, stop = span_places(read, start, end)
    assert begin > 0
    assert context[read.spans[begin][0] : read.spans[stop][1]].strip() == context[start:end]


@given(st.integers(1, 9), st.integers(1, 4), st.integers(1, 10), st.integers(0, 10**6))
def test_the_best_span_is_the_valid_one_with_the_highest_score(length, question, longest, seed):
    spans = [(0, 0)] * question + [(place, place + 1) for place in range(length)]
    window = Encoded([5] * len(spans), spans, [0] * len(spans), [0] * question + [1] * length)
    scores = torch.randn(len(spans), 2, generator=torch.Generator().manual_seed(seed))
    legal = {
        (i - question, j - question + 1): float(scores[i, 0] + scores[j, 1])
        for i in range(question, len(spans))
        for j in range(i, min(i + longest, len(spans)))
    }
    score, start, end = best_span(scores, window, longest)
    assert score == pytest.approx(max(legal.values()))
    assert legal[start, end] == pytest.approx(score)


def test_the_answer_is_the_text_at_its_place():
    context = "it is red. the old cat sees it"
    found = make(Extractor).find(("what color is it?", context))
    assert found.text
    assert context[found.start : found.start + len(found.text)] == found.text


def test_a_model_that_abstains_gives_no_answer_where_no_span_is_better(monkeypatch):
    tool = make(Extractor)
    tool.abstains = True
    # The first token stands for no answer. Its score is the highest.
    monkeypatch.setattr(
        tool,
        "answers",
        lambda rows: [torch.eye(len(row), 2).fill_(0).index_fill(0, torch.tensor([0]), 9.0) for row in rows],
    )
    found = tool.find(("what color is it?", "it is red."))
    assert (found.text, found.start) == ("", -1)
    assert found.score < 0
