import pytest

from glassformer.pipelines.text_to_text import TextToText
from glassformer.pipelines.translator import Translator
from glassformer.serve.word_alignment import align_words
from pipelines.tiny_pipelines import make

SOURCE, TARGET = "the old cat", "it is red."


@pytest.mark.parametrize("kind", [Translator, TextToText])
def test_each_word_of_the_target_has_a_word_of_the_source(kind):
    found = align_words(make(kind), SOURCE, TARGET)
    assert [entry["target"] for entry in found] == ["it", "is", "red."]
    for entry in found:
        assert SOURCE[slice(*entry["source_span"])] == entry["source"]
        assert TARGET[slice(*entry["target_span"])] == entry["target"]
        assert entry["source"] in SOURCE.split()
        assert 0 < entry["weight"] < 1


def test_the_weight_is_that_of_the_attention():
    pipeline = make(Translator)
    (one,) = align_words(pipeline, "cat", "red")
    assert one["source"] == "cat"
    assert one["weight"] < 1, "the END of the source gets some of the attention"


def test_nothing_is_aligned_with_nothing():
    pipeline = make(Translator)
    assert align_words(pipeline, " ", "red") == []
    assert align_words(pipeline, "cat", "") == []
    assert align_words(pipeline, "cat " * 100, "red") == [], "longer than the model reads"
