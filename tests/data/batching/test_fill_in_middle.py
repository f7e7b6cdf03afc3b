"""Fill-in-the-middle: splitting documents in three, and encoding the parts."""

from hypothesis import given
from hypothesis import strategies as st

from glassformer.data.batching.fill_in_middle import FillInMiddleParts, encode_fill_in_middle, fill_in_middle_parts
from glassformer.data.readers.text_documents import Document


@given(st.text("ab\n", max_size=60), st.floats(0, 1), st.integers(1, 20))
def test_cuts_lose_no_text_and_depend_on_the_seed_only(text, chance, longest):
    document = Document(text, "here")
    cuts = list(fill_in_middle_parts(document, chance=chance, longest=longest, seed=3))
    assert "".join(cut.before + (cut.middle or "") + cut.after for cut in cuts) == text
    assert cuts == list(fill_in_middle_parts(document, chance=chance, longest=longest, seed=3))
    for cut in cuts:
        size = len(cut.before + (cut.middle or "") + cut.after)
        assert cut.middle is None or size <= max([longest, *map(len, text.splitlines(keepends=True))])


def test_the_middle_is_encoded_last_and_each_part_follows_its_mark():
    def letters(texts):
        return [[ord(letter) for letter in text] for text in texts]

    found = encode_fill_in_middle(
        [FillInMiddleParts("ab"), FillInMiddleParts("c", "d", "e"), FillInMiddleParts("", "", "")], letters, (1, 2, 3)
    )
    assert found == [[97, 98], [1, 99, 2, 101, 3, 100], [1, 2, 3]]
    whole = list(fill_in_middle_parts(Document("a\n" * 50), chance=0.0, longest=4, seed=0))
    assert whole == [FillInMiddleParts("a\n" * 50)]
