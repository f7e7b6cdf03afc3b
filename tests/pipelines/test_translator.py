"""The translator: its texts and its scores."""

import pytest

from glassformer.data.readers.pairs import Pair
from glassformer.pipelines.translator import Translator
from pipelines.tiny_pipelines import make


def test_a_translation_that_equals_its_reference_scores_100(monkeypatch):
    tool, beams = make(Translator), []
    monkeypatch.setattr(
        tool, "write", lambda texts, beam=None, **_: beams.append(beam) or [text.upper() for text in texts]
    )
    pairs = [Pair("the old cat sees it", "THE OLD CAT SEES IT"), Pair("it is a red saw", "IT IS A RED SAW")]
    assert tool.score(pairs, beam=1).values == pytest.approx({"bleu": 100, "chrf": 100})
    assert beams == [1]


def test_a_blank_text_gives_a_blank_translation():
    tool = make(Translator)
    assert tool.translate(["the cat", " "]) == [tool.translate("the cat"), ""]
