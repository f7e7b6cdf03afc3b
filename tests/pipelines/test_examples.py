"""Examples of tasks: how a question and its text become one source text."""

from glassformer.pipelines.examples import as_source


def test_sentences_are_numbered_from_the_end():
    told = as_source("Who?", "One is here. Two\nsits. Is it three?", number_sentences=True, last_sentences=2)
    assert told == "2 sits. 1 Is it three?\n Who?"
    whole = as_source("Who?", "One is  here.", number_sentences=False, last_sentences=0)
    assert whole == "One is here.\n Who?"
