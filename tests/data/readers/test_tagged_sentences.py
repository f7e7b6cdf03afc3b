"""Tagged sentences from CoNLL columns and from JSONL with character spans."""

import pytest

from glassformer.data.readers.records import BadRecordError
from glassformer.data.readers.tagged_sentences import TaggedReader, TaggedSentence
from glassformer.text.tags import Entity


def test_half_a_surrogate_pair_in_a_text_or_a_label_is_a_bad_record(tmp_path):
    (tmp_path / "a.jsonl").write_text(
        '{"text": "a b \\ud800", "spans": []}\n{"text": "b", "spans": [[0, 1, "\\udc00"]]}\n',
        encoding="utf-8",
    )
    found = TaggedReader(on_bad="skip").read([tmp_path / "a.jsonl"])
    assert not found
    assert found.skipped.total() == 2


def test_a_sentence_whose_lines_differ_in_columns_is_bad(tmp_path):
    (tmp_path / "a.conll").write_text(
        "Ann NN B-PER\nsat VB O\n\nNew NN B-LOC\nYork City NN I-LOC\n\nBob B-PER\n", encoding="utf-8"
    )
    with pytest.raises(
        BadRecordError, match=r"a\.conll:5: 4 columns: expected 3, as in the first line of its sentence"
    ):
        TaggedReader().read([tmp_path / "a.conll"])
    found = TaggedReader(on_bad="skip").read([tmp_path / "a.conll"])
    assert [sentence.words for sentence in found] == [("Ann", "sat"), ("Bob",)]


def test_columns_and_character_spans_give_the_same_sentences(tmp_path):
    conll, jsonl = tmp_path / "a.conll", tmp_path / "a.jsonl"
    conll.write_text(
        "-DOCSTART- -X- O\n\nAnn NN I-PER\nsat VB O\n\nIn IN O\nNew NN I-LOC\nYork NN I-LOC\n", encoding="utf-8"
    )
    jsonl.write_text(
        '{"text": "Ann sat", "spans": [[0, 3, "PER"]]}\n{"text": "In  New York", "spans": [[4, 12, "LOC"]]}\n',
        encoding="utf-8",
    )
    expected = [
        (("Ann", "sat"), (Entity(0, 1, "PER"),)),
        (("In", "New", "York"), (Entity(1, 3, "LOC"),)),
    ]
    for path, lines in ((conll, (3, 6)), (jsonl, (1, 2))):
        assert TaggedReader().read([path]) == [
            TaggedSentence(*sentence, f"{path}:{line}") for sentence, line in zip(expected, lines, strict=True)
        ]


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ('[[0, 2, "PER"]]', r"a\.jsonl:1: the span .*'An', does not fit the words, which are cut as 'Ann'"),
        ('[[0, 3, "PER"], [0, 7, "LOC"]]', r"a\.jsonl:1: two spans overlap, PER and LOC"),
        ('[[0, 9, "PER"]]', r"a\.jsonl:1: .* leaves the text of 7 characters"),
        ("3", r"a\.jsonl:1: no spans under 'spans'"),
    ],
)
def test_a_span_that_does_not_fit_the_words_is_named(tmp_path, spans, message):
    (tmp_path / "a.jsonl").write_text(f'{{"text": "Ann sat", "spans": {spans}}}\n', encoding="utf-8")
    with pytest.raises(BadRecordError, match=message):
        TaggedReader().read([tmp_path / "a.jsonl"])
