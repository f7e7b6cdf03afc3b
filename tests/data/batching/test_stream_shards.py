"""A stream of tokens in shards."""

import numpy as np
import pytest
import torch

from glassformer.data.batching import packed_windows
from glassformer.data.batching.packed_windows import PackedBatches
from glassformer.data.batching.stream_shards import StreamShards
from glassformer.data.batching.token_stream import TokenStream, write_stream


def encode(texts):
    return [[ord(letter) - 80 for letter in text] for text in texts]


TEXTS = ["abcde", "fg", "hijklmno", "p", "qrstuv" * 5, "wxyz" * 9]


@pytest.fixture
def shards(tmp_path):
    folders = [tmp_path / f"{place}" for place in range(3)]
    for place, folder in enumerate(folders):
        write_stream(folder, TEXTS[2 * place : 2 * place + 2], encode, has_documents=True, ends=False)
    return StreamShards(folders)


def test_shards_are_read_like_one_stream(tmp_path, shards):
    whole = write_stream(tmp_path / "whole", TEXTS, encode, has_documents=True)
    assert len(shards) == len(whole)
    assert (shards.n_documents, shards.n_bytes) == (whole.n_documents, whole.n_bytes)
    for begin, end in ((0, len(whole)), (3, 11), (len(whole) - 4, len(whole)), (12, 13)):
        assert shards.read(begin, end).tolist() == whole.read(begin, end).tolist()
    one, two = (PackedBatches(stream, 8, 24, seed=1) for stream in (shards, whole))
    for number in (0, 5, 17):
        assert all(torch.equal(a, b) for a, b in zip(one[number], two[number], strict=True))


def test_the_order_of_many_windows_takes_no_memory(monkeypatch, shards):
    drawn = PackedBatches(shards, 4, 4, seed=2)
    monkeypatch.setattr(packed_windows, "MAX_DRAWN", 3)
    computed = PackedBatches(shards, 4, 4, seed=2)
    both = [
        sorted(tuple(batches[number].targets.reshape(-1).tolist()) for number in range(len(batches)))
        for batches in (drawn, computed)
    ]
    assert both[0] == both[1], "the same windows, in another order"
    again = PackedBatches(shards, 4, 4, seed=2)
    assert torch.equal(computed[7].tokens, again[7].tokens)


def test_a_file_that_was_cut_off_is_an_error(tmp_path, shards):
    file = tmp_path / "1" / "tokens.bin"
    file.write_bytes(np.zeros(2, dtype=np.int32).tobytes())
    with pytest.raises(OSError, match=r"tokens.bin ends before token"):
        shards.read(0, len(shards))


def test_one_file_is_read_like_its_ids(tmp_path):
    stream = write_stream(tmp_path / "x", TEXTS, encode, has_documents=True)
    assert TokenStream(tmp_path / "x").read(2, 9).tolist() == stream.ids[2:9].tolist()
