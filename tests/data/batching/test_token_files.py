"""Tokenized pairs in files."""

import pytest

from glassformer.data.batching.token_files import TokenFiles, new_token_folder, write_token_files
from glassformer.data.readers.pairs import Pair


def numbers(texts):
    return [[int(word) for word in text.split()] for text in texts]


def test_token_files_hold_what_was_written(tmp_path):
    pairs = [Pair("4 5 6", "7"), Pair("8", "9 10"), Pair("5 " * 11, "3")]
    files = write_token_files(tmp_path / "train", pairs, numbers, numbers, max_len=10)
    assert (len(files), files.n_long) == (2, 1)
    assert files.ids("source", 0).tolist() == [4, 5, 6]
    assert files.ids("target", 1).tolist() == [9, 10]
    again = TokenFiles(tmp_path / "train")
    assert again.lengths("source").tolist() == [3, 1]
    assert [path.name for path in tmp_path.iterdir()] == ["train"]


@pytest.mark.parametrize(("kept", "source", "target"), [("first", [4, 5], [7, 8]), ("last", [5, 6], [7, 8])])
def test_a_long_pair_keeps_its_first_or_last_tokens(tmp_path, kept, source, target):
    files = write_token_files(tmp_path / "x", [Pair("4 5 6", "7 8 9")], numbers, numbers, max_len=2, kept=kept)
    assert (len(files), files.n_long) == (1, 1)
    assert files.ids("source", 0).tolist() == source
    assert files.ids("target", 0).tolist() == target


def test_a_failure_leaves_the_old_folder_and_no_partial_files(tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "old").write_text("old", encoding="utf-8")

    def write_and_fail():
        with new_token_folder(tmp_path / "x") as work:
            (work / "new").write_text("new", encoding="utf-8")
            raise RuntimeError("the tokenizer failed")

    with pytest.raises(RuntimeError, match="the tokenizer failed"):
        write_and_fail()
    assert [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*"))] == ["x", "x/old"]
