"""The denoiser: its special tokens, and lines with blanks."""

import pytest

from glassformer.decoding import GenerationConfig
from glassformer.pipelines.denoiser import Denoiser, specials_of
from glassformer.pipelines.pipeline import LineRequest
from pipelines.tiny_pipelines import NOISE, make, rewriter


def test_spans_need_one_sentinel_per_span_and_infilling_one_mask():
    assert specials_of("infilling", 100, 0.15, 3.0) == ["<mask>"]
    assert specials_of("spans", 20, 0.15, 3.0) == ["<extra_id_0>", "<extra_id_1>"]
    assert len(specials_of("spans", 100, 0.15, 3.0)) == 6  # 15 hidden tokens in 5 spans, and the last sentinel


def test_a_tokenizer_without_the_special_tokens_is_refused():
    with pytest.raises(ValueError, match=r"the tokenizer has no <extra_id_0>, which spans with share=0.15 .* need"):
        rewriter(Denoiser, **NOISE)


def test_only_lines_with_blanks_change_and_too_many_blanks_are_refused():
    tool = make(Denoiser)
    filled, unchanged, blank = tool.run(["the ___ cat", "the old cat", ""])
    assert "___" not in filled or filled.startswith("the ")
    assert (unchanged, blank) == ("the old cat", "")
    with pytest.raises(ValueError, match=r"a line has 9 blanks: expected at most \d"):
        tool.answer_lines(["___ " * 9], LineRequest())
    with pytest.raises(ValueError, match=r"stop_strings=\('x',\): expected none, because the model fills in blanks"):
        tool.answer_lines(["a ___"], LineRequest(generation=GenerationConfig(stop_strings=("x",))))


def test_written_spans_are_put_into_the_blanks():
    tool = make(Denoiser)
    first, second, *_ = tool.marks
    encode = tool.target_tokenizer.encode
    assert tool._filled("a ___ and ___", [first, *encode("cat"), second, *encode("saw")]) == "a cat and saw"
