"""The word tokenizer and vocabulary of the reference."""

from glassformer import reference


def test_tokenizer_lower_cases_and_splits():
    assert reference.simple_tokenizer("Hello  Transformer\tworld") == ["hello", "transformer", "world"]


def test_vocabulary_round_trips_and_maps_other_words_to_unknown():
    vocabulary = reference.Vocabulary(reference.simple_tokenizer("the cat sat on the mat"))
    ids = vocabulary.encode("the cat sat", begin=True, end=True)
    assert ids[0] == vocabulary.BEGIN
    assert ids[-1] == vocabulary.END
    assert vocabulary.decode([*ids, 7, 8]) == "the cat sat"
    assert vocabulary.encode("the dog") == [vocabulary.ids["the"], vocabulary.UNKNOWN]
    assert len(vocabulary) == 4 + 5


def test_text_never_becomes_a_special_token():
    vocabulary = reference.Vocabulary(["<s>", "</s>", "<pad>", "a"])
    assert vocabulary.encode("<s> </s> <pad> a") == [vocabulary.UNKNOWN] * 3 + [vocabulary.ids["a"]]
