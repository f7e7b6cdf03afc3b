"""Blanks in a line: where they are, how they are masked, and how they are filled in."""

from glassformer.pipelines.blanks import fill_in, put_marks, without_blanks
from glassformer.text import Tokenizer


def test_blanks_are_marked_and_filled():
    line = "a ___, ___"
    stood, places = without_blanks(line)
    assert stood == "a x, x"
    assert [stood[begin:end] for begin, end in places] == [" x", " x"]
    assert fill_in(line, ["cat", "dog"]) == "a cat, dog"
    assert fill_in(line, ["cat"]) == "a cat, ___"
    tokenizer = Tokenizer.train(["a b, c"], 300, more_special=["<mask>"])
    mask = tokenizer.special_id("<mask>")
    assert mask == 4
    marked = put_marks(tokenizer.offsets_batch([(stood, None)])[0], places, [mask, mask])
    assert [token for token in marked if token != mask] == [*tokenizer.encode("a"), tokenizer.encode("b,")[-1], 2]
    assert tokenizer.decode(marked) == "a,"
    stood, places = without_blanks("___ b")
    assert put_marks(tokenizer.offsets_batch([(stood, None)])[0], places, [mask]) == [mask, *tokenizer.encode("b"), 2]
    assert mask not in tokenizer.encode("<mask> is text")
