"""Suggestions for misspelled names and paths."""

from glassformer.base.names import nearest, suggestion


def test_no_suggestion_without_a_similar_name():
    assert nearest("Warm-Up", ["warmup", "lr"]) == "warmup"
    assert nearest("zzz", ["warmup", "lr"]) is None
    assert suggestion("zzz", ["a", "b"]) == "expected one of a, b"
    assert suggestion("zzz", ["", "b"]) == "expected b"
