"""Document 001 has the code of document 000."""

from glassformer.documents import document_000, document_001


def test_every_name_is_that_of_document_000():
    assert document_001.__all__ == document_000.__all__
    for name in document_001.__all__:
        assert getattr(document_001, name) is getattr(document_000, name)
