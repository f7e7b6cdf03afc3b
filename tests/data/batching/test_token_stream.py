"""Tokenized documents as one stream."""

from glassformer.data.batching.token_stream import TokenStream, write_stream
from glassformer.text.tokenizer import END


def encode(texts):
    return [[ord(letter) - 80 for letter in text] for text in texts]


def test_ends_surround_documents_unless_another_shard_follows(tmp_path):
    whole = write_stream(tmp_path / "whole", ["ab", "c"], encode, has_documents=True)
    shard = write_stream(tmp_path / "shard", ["ab", "c"], encode, has_documents=True, ends=False)
    assert whole.ids.tolist() == [END, 17, 18, END, 19, END]
    assert shard.ids.tolist() == whole.ids.tolist()[:-1]
    assert TokenStream(tmp_path / "shard").read(1, 3).tolist() == [17, 18]
