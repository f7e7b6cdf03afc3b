"""Tokenized pairs in shards."""

import numpy as np
import pytest

from glassformer.data.batching.pair_shards import PairShard, read_cells, write_pair_shards
from glassformer.data.readers.pairs import Pair


def encode(texts):
    return [[len(word) for word in text.split()] for text in texts]


def write(folder, pairs, **options):
    return write_pair_shards(folder, pairs, encode, encode, max_len=9, **options)


def test_shards_hold_the_pairs_in_order(tmp_path):
    pairs = [Pair("a " * (n % 5 + 1), "bb " * (n % 3 + 1)) for n in range(25)]
    folders, n_long = write(tmp_path, pairs, shard_rows=10)
    shards = [PairShard(folder) for folder in folders]
    assert (len(shards), n_long) == (3, 0)
    assert [len(shard.lengths("source")) for shard in shards] == [10, 10, 5]
    for n in range(25):
        assert shards[n // 10].ids("source", n % 10).tolist() == [1] * (n % 5 + 1)
        assert shards[n // 10].ids("target", n % 10).tolist() == [2] * (n % 3 + 1)


def test_cells_count_the_pairs_of_each_length(tmp_path):
    folders, _ = write(tmp_path, [Pair("a", "b"), Pair("a a", "b"), Pair("a", "b")])
    cells = read_cells(folders[0])
    assert sorted(zip(*(side.tolist() for side in cells), strict=True)) == [(1, 1, 2), (2, 1, 1)]
    assert (cells.n_pairs, cells.n_tokens) == (3, 3 + 4 + 6)
    rounded = cells.rounded(4)
    assert [side.tolist() for side in rounded] == [[4], [4], [3]]


def test_long_pairs_are_counted_and_an_empty_shard_is_not_written(tmp_path):
    folders, n_long = write(tmp_path, [Pair("a " * 10, "b")] * 3 + [Pair("a", "b")], shard_rows=2)
    assert ([folder.name for folder in folders], n_long) == (["00000"], 3)
    assert len(PairShard(folders[0]).lengths("source")) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["00000"]


def test_a_file_that_was_cut_off_is_an_error(tmp_path):
    folders, _ = write(tmp_path, [Pair("a b c", "d")])
    (folders[0] / "source.bin").write_bytes(np.zeros(2, dtype=np.int32).tobytes())
    with pytest.raises(OSError, match=r"source.bin ends before token 3: .* prepare the data again"):
        PairShard(folders[0]).ids("source", 0)
