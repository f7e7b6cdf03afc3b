"""The summarizer: its texts and its scores."""

from glassformer.pipelines.examples import Summary
from glassformer.pipelines.summarizer import Summarizer
from pipelines.tiny_pipelines import make


def test_a_summary_that_equals_a_reference_scores_100(monkeypatch):
    tool = make(Summarizer)
    monkeypatch.setattr(tool, "write", lambda texts, beam=None: ["the cat sees it"] * len(texts))
    example = Summary("long text", "the cat sees it", ("it is red", "the cat sees it"), ("long text",))
    assert tool.score([example]).values == {"rouge1": 100.0, "rouge2": 100.0, "rougeL": 100.0}


def test_a_list_and_a_string_are_summarized_alike():
    tool = make(Summarizer)
    assert tool.summarize(["the old cat", ""]) == [tool.summarize("the old cat"), ""]
