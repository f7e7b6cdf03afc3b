"""Parts of data files that several processes can read."""

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.data.readers.file_parts import divide_aligned, divide_file, group_parts, part_of_lines
from glassformer.data.readers.pairs import PairReader
from glassformer.data.readers.records import BadRecordError, read_records
from glassformer.data.readers.text_files import read_lines


@given(st.lists(st.text("ab", max_size=6), min_size=1, max_size=40), st.integers(1, 60), st.booleans())
def test_parts_hold_all_lines_with_their_numbers(tmp_path_factory, lines, n_bytes, ends):
    path = tmp_path_factory.mktemp("parts") / "a.txt"
    path.write_text("\n".join(lines) + "\n" * ends, encoding="utf-8")
    parts = list(divide_file(path, n_bytes))
    found = [line for part in parts for line in read_lines(path, span=part.spans[0])]
    assert found == list(read_lines(path))
    assert sum(part.n_bytes() for part in parts) == path.stat().st_size


@given(st.integers(1, 50), st.integers(1, 12), st.booleans())
def test_aligned_parts_hold_all_pairs(tmp_path_factory, count, n_lines, ends):
    folder = tmp_path_factory.mktemp("aligned")
    for side in "ab":
        text = "\n".join(side * (number % 7 + 1) for number in range(count)) + "\n" * ends
        (folder / side).write_text(text, encoding="utf-8")
    parts = list(divide_aligned(folder / "a", folder / "b", n_lines))
    assert [part.n_examples for part in parts] == [min(n_lines, count - n) for n in range(0, count, n_lines)]
    found = [pair for part in parts for pair in PairReader(part.files[:1], part.files[1:], spans=part.spans)]
    assert found == list(PairReader([folder / "a"], [folder / "b"]))


def test_files_of_different_lengths_are_refused(tmp_path):
    (tmp_path / "a").write_text("x\n" * 5, encoding="utf-8")
    (tmp_path / "b").write_text("x\n" * 8, encoding="utf-8")
    with pytest.raises(BadRecordError, match=r"b:6: .*a has fewer lines"):
        list(divide_aligned(tmp_path / "a", tmp_path / "b", 3))


def test_a_part_of_a_table_has_the_header_and_its_own_rows(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("source\ttarget\n" + "".join(f"s{n}\tt{n}\n" for n in range(30)), encoding="utf-8")
    parts = list(divide_file(path, 50))
    assert len(parts) > 3
    found = [record for part in parts for record in read_records(path, ["target"], part.spans[0])]
    assert found == list(read_records(path, ["target"]))


def test_parts_end_at_separators(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("".join(f"one {n}\ntwo\n\n" for n in range(30)), encoding="utf-8")
    for part in list(divide_file(path, 40, separator=""))[:-1]:
        *_, last = read_lines(path, span=part.spans[0])
        assert last.text == ""


def test_compressed_and_csv_files_stay_whole(tmp_path):
    with gzip.open(tmp_path / "a.tsv.gz", "wt", encoding="utf-8") as stream:
        stream.write("source\ttarget\n" + "x\ty\n" * 99)
    (tmp_path / "a.csv").write_text('source,target\n"x\ny",z\n' * 9, encoding="utf-8")
    for name in ("a.tsv.gz", "a.csv"):
        (part,) = divide_file(tmp_path / name, 10)
        assert part.spans == ()
    (part,) = divide_aligned(tmp_path / "a.tsv.gz", tmp_path / "a.csv", 1)
    assert part.spans == ()


def test_small_files_are_grouped(tmp_path):
    for n in range(10):
        (tmp_path / f"{n}.txt").write_text("x" * 10, encoding="utf-8")
    parts = [part for n in range(10) for part in divide_file(tmp_path / f"{n}.txt", 1000)]
    assert [len(group) for group in group_parts(parts, 40)] == [4, 4, 2]


@given(st.lists(st.text("ab", max_size=6), min_size=1, max_size=30), st.integers(1, 12), st.booleans())
def test_n_parts_hold_all_lines_in_order(tmp_path_factory, lines, count, ends):
    path = tmp_path_factory.mktemp("parts") / "a.txt"
    path.write_text("\n".join(lines) + "\n" * ends, encoding="utf-8")
    spans = [part_of_lines(path, index, count) for index in range(1, count + 1)]
    assert [line for span in spans for line in read_lines(path, span=span)] == list(read_lines(path))


def test_a_part_of_a_compressed_file_is_refused(tmp_path):
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"x"))
    with pytest.raises(ValueError, match=r"a.gz is compressed: expected a plain file"):
        part_of_lines(tmp_path / "a.gz", 1, 2)
