"""Rule-based sentence splitting."""

import pytest

from glassformer.text.sentences import split_sentences


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two! Three? 4 is last", ["One.", "Two!", "Three?", "4 is last"]),
        ('He said "Go." Then (all) left.', ['He said "Go."', "Then (all) left."]),
        ("Version 3.5 is out. it has no capital.", ["Version 3.5 is out. it has no capital."]),
        ("See e.g. Fig. 3 by Dr. Ann (cf. Bob). End.", ["See e.g. Fig. 3 by Dr. Ann (cf. Bob).", "End."]),
        ("A line\n\n  another one \n", ["A line", "another one"]),
        ("", []),
    ],
)
def test_sentences_end_at_line_breaks_and_before_a_capital_or_digit(text, sentences):
    assert split_sentences(text) == sentences
