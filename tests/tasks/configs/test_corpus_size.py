"""The size of a corpus in characters and, roughly, in tokens."""

from glassformer.tasks.configs.defaults import (
    CorpusSize,
)


def test_the_corpus_is_measured_by_its_characters():
    corpus = CorpusSize.measure([("abcd" * 10, "ab" * 10), ("abcd" * 10, "ab" * 10)])
    assert corpus == CorpusSize(2, 80, 40)
    assert corpus.lengths() == (11, 6)


def test_an_empty_corpus_has_a_size_that_can_be_divided_by():
    empty = CorpusSize.measure([])
    assert empty == CorpusSize(0, 0, 0)
    assert (empty.tokens, empty.lengths()) == (1, (0, 0))
