"""The answerer: lines with a question and a text, and answers with evidence."""

import pytest

from glassformer.pipelines.answerer import Answerer, ReasonedAnswer, as_asked, read_reasoned_answer
from glassformer.pipelines.pipeline import LineRequest
from pipelines.tiny_pipelines import make, rewriter


def test_a_line_is_split_at_its_first_tab():
    assert as_asked("Who?\tAnn\tis here.") == ("Who?", "Ann\tis here.")
    for line in ("Who?", "Who?\t ", "\tAnn is here."):
        with pytest.raises(ValueError, match="expected a question, a tab and a text"):
            as_asked(line)


def test_evidence_and_answer_are_separated_and_a_missing_answer_is_empty():
    assert read_reasoned_answer("Ann is in the garden.\n the garden") == ReasonedAnswer(
        "Ann is in the garden.", "the garden"
    )
    assert read_reasoned_answer("Ann is in the garden.") == ReasonedAnswer("Ann is in the garden.", "")


def test_a_model_that_quotes_reports_its_evidence(monkeypatch):
    quoting, plain = rewriter(Answerer, quotes=True), make(Answerer)
    for tool in (quoting, plain):
        monkeypatch.setattr(tool, "write", lambda sources, beam=None: ["It is red.\n red"] * len(sources))
    assert quoting.reason(("what?", "It is red.")) == ("It is red.", "red")
    assert quoting.answer("what?", "It is red.") == "red"
    assert plain.reason(("what?", "It is red.")) == ("", "It is red.\n red")
    (record,) = (answer.record for answer in quoting.answer_lines(["what?\tIt is red."], LineRequest()))
    assert record.keys() == {"answer", "evidence"}


def test_a_model_that_quotes_may_write_longer_texts():
    assert rewriter(Answerer, generation=None, quotes=True).generation.max_new_tokens == 256
    assert rewriter(Answerer, generation=None).generation.max_new_tokens == 64
