"""The mask filler: the mask token, the tokens around a text, and lines with blanks."""

import pytest

from glassformer.data.readers.plain_texts import PlainText
from glassformer.pipelines.encoder_pipeline import Reader
from glassformer.pipelines.mask_filler import MASK, MaskFiller, mask_of, surrounding_tokens, words_of
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
