"""Text files: every reader drops a byte-order mark, and reports damage with file and line."""

import bz2
import gzip
import json
import lzma
import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.data.corpora.catalog import open_corpus
from glassformer.data.readers.answer_spans import SpanReader
from glassformer.data.readers.code_problems import read_problems
from glassformer.data.readers.pairs import PairReader
from glassformer.data.readers.plain_texts import TextReader
from glassformer.data.readers.records import BadRecordError, RecordReader
from glassformer.data.readers.tagged_sentences import TaggedReader
from glassformer.data.readers.text_documents import DocumentReader
from glassformer.data.readers.text_files import read_lines, read_text
from glassformer.tasks.language import LanguageConfig
from glassformer.tasks.recipes import load_recipe

SQUAD = {"data": [{"paragraphs": [{"context": "a cat", "qas": [{"question": "q", "id": "1", "answers": ["cat"]}]}]}]}
COLUMNS = ("question", "context", "answer")
READERS = {
    "pairs": ("a.txt", "one\ntwo\n", lambda path: _aligned(path)),
    "plain texts": ("a.txt", "one\ntwo\n", lambda path: [found.text for found in TextReader([path])]),
    "documents": ("a.txt", "one\ntwo\n", lambda path: [found.text for found in DocumentReader([path])]),
    "parts": (
        "a.txt",
        "one\n\ntwo\n",
        lambda path: [found.text for found in DocumentReader([path], separator="blank")],
    ),
    "folder": ("a.txt", "one\ntwo\n", lambda path: [found.text for found in DocumentReader([path.parent])]),
    "records": ("a.jsonl", '{"a": "b"}\n', lambda path: list(RecordReader([path], ["a"], lambda record: record.cells))),
    "columns": ("a.txt", "Ann B-PER\nsat O\n", lambda path: [found.words for found in TaggedReader().read([path])]),
    "squad": ("a.json", json.dumps(SQUAD), lambda path: [found.context for found in SpanReader([path], COLUMNS)]),
    "problems": (
        "a.jsonl",
        '{"text": "b", "test_list": ["c"]}\n',
        lambda path: [one.text for one in read_problems(path)],
    ),
    "tatoeba": ("deu-eng.tsv", "Hi.\tHallo.\n", lambda path: _tatoeba(path.parent)),
}


def _aligned(path):
    other = path.with_name(path.name.replace(".txt", ".de"))
    other.write_bytes(path.read_bytes())
    return [pair.source for pair in PairReader([path], [other])]


def _tatoeba(folder):
    return [pair.source for side in open_corpus("tatoeba", folder=folder).values() for pair in side]


@pytest.fixture(params=list(READERS))
def reading(request):
    return READERS[request.param]


def test_byte_order_mark_is_dropped_from_the_text(tmp_path, reading):
    name, text, read = reading
    path = tmp_path / name
    path.write_bytes(text.encode())
    plain = read(path)
    path.write_bytes(text.encode("utf-8-sig"))
    assert read(path) == plain
    assert "\ufeff" not in str(plain)


def test_text_that_is_not_utf8_is_named(tmp_path, reading):
    name, text, read = reading
    first, _, rest = text.partition("\n")
    (tmp_path / name).write_bytes(first.encode() + b" \xe4\n" + rest.encode())
    with pytest.raises(BadRecordError, match=rf"{name}:1: not valid UTF-8"):
        read(tmp_path / name)


@settings(max_examples=30)
@given(st.binary(max_size=60) | st.text('ab \t\n\r{}[]"\u2028\ufeffBIO-', max_size=40).map(str.encode))
def test_any_bytes_are_read_or_refused_with_an_error(tmp_path_factory, contents):
    folder = tmp_path_factory.mktemp("any")
    for name, _, read in READERS.values():
        (folder / name).write_bytes(contents)
        message = ""
        try:
            read(folder / name)
        except ValueError as error:
            message = str(error)
        assert not message or str(folder) in message  # an error of the codec itself would not name the file


def _damaged(text):
    """Ways to damage a .gz, by name."""
    noise = random.Random(0).randbytes(40_000).hex()
    lines = text.encode() * 3 + b"\n" + noise.encode() + b"\n"
    whole = gzip.compress(lines)
    middle = len(whole) // 2
    return {
        "cut off": whole[:middle],
        "without its last bytes": whole[:-4],
        "changed": whole[:middle] + bytes(byte ^ 255 for byte in whole[middle : middle + 50]) + whole[middle + 50 :],
        "empty": b"",
        "not gzip": lines,
        "followed by other bytes": whole + b"more",
    }


@pytest.mark.parametrize("how", list(_damaged("")))
@pytest.mark.parametrize("on_bad", ["error", "skip"])
def test_a_damaged_gz_is_always_an_error_that_names_the_line(tmp_path, how, on_bad):
    (tmp_path / "a.txt.gz").write_bytes(_damaged("one\ntwo\n")[how])
    with pytest.raises(BadRecordError, match=r"a\.txt\.gz:\d+: the \.gz cannot be unpacked from here on"):
        list(TextReader([tmp_path / "a.txt.gz"], on_bad=on_bad))


def test_a_damaged_gz_is_an_error_of_every_reader(tmp_path, reading):
    name, text, read = reading
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(text.encode())[:-4])
    with pytest.raises(BadRecordError, match=rf"{name}\.gz:\d+: the \.gz cannot be unpacked"):
        read(tmp_path / f"{name}.gz")


def test_only_a_line_feed_ends_a_line(tmp_path):
    text = "a\x0bb\x0cc\x1cd\x85e\u2028f\rg\r\nh\r\r\n\ni"
    (tmp_path / "a.txt").write_bytes(text.encode())
    found = [(line.text, line.where.rsplit(":")[-1]) for line in read_lines(tmp_path / "a.txt")]
    assert found == [("a\x0bb\x0cc\x1cd\x85e\u2028f\rg", "1"), ("h\r", "2"), ("", "3"), ("i", "4")]
    assert (
        read_text(tmp_path / "a.txt") == text == "".join(x.text for x in read_lines(tmp_path / "a.txt", keep_ends=True))
    )


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"context = 8\n# \xff\n", r"r\.toml:2: not valid UTF-8"),
        (b"context = %s\n" % (b"9" * 5000), r"r\.toml is not TOML: Exceeds the limit"),
        (b"context =\n", r"r\.toml is not TOML: .*line 1"),
        (b"context = " + b"[" * 5000 + b"\n", r"r\.toml is not TOML"),
    ],
)
def test_recipes_that_cannot_be_read_are_named(tmp_path, contents, message):
    (tmp_path / "r.toml").write_bytes(contents)
    with pytest.raises(ValueError, match=message):
        load_recipe(tmp_path / "r.toml", LanguageConfig)


def test_a_recipe_may_begin_with_a_byte_order_mark(tmp_path):
    (tmp_path / "r.toml").write_bytes("context = 8\n".encode("utf-8-sig"))
    assert load_recipe(tmp_path / "r.toml", LanguageConfig).context == 8


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_a_pipe_is_refused_because_data_is_read_more_than_once(tmp_path):
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(ValueError, match="is a pipe or a device: expected a regular file"):
        TextReader([tmp_path / "pipe.txt"], "text", "error")
    with pytest.raises(ValueError, match="is a pipe or a device"):
        DocumentReader([tmp_path / "pipe.txt"])
    with pytest.raises(IsADirectoryError, match="is a folder: expected a file"):
        TextReader([tmp_path], "text", "error")
    with pytest.raises(FileNotFoundError, match="no such file"):
        TextReader([tmp_path / "none.txt"], "text", "error")


FORMATS = {
    "xz": (lzma.compress, "compressed by xz"),
    "bzip2": (bz2.compress, "compressed by bzip2"),
    "gzip": (gzip.compress, "compressed by gzip, and has no name that ends in .gz"),
    "zstd": (lambda data: b"(\xb5/\xfd" + data, "compressed by zstd"),
    "zip": (lambda data: b"PK\x03\x04" + data, "a zip archive"),
    "UTF-16": (lambda data: data.decode().encode("utf-16"), "in UTF-16"),
    "UTF-16 without a mark": (lambda data: data.decode().encode("utf-16-le"), "in UTF-16"),
    "big-endian UTF-16": (lambda data: data.decode().encode("utf-16-be"), "in UTF-16"),
}


@pytest.mark.parametrize("kind", FORMATS)
def test_a_file_in_another_format_is_refused_as_a_whole(kind, tmp_path):
    """With on_bad="skip", lines that happen to be valid UTF-8 would be learned."""
    made, name = FORMATS[kind]
    path = tmp_path / "a.txt"
    path.write_bytes(made("".join(f"a text of line {n}\n" for n in range(50)).encode()))
    with pytest.raises(BadRecordError, match=rf"a.txt:1: the file is {name}: expected"):
        list(TextReader((path,), on_bad="skip"))
    for separator in ("", "blank"):
        documents = DocumentReader((path,), separator=separator, on_bad="skip")
        assert list(documents) == []
        assert documents.skipped == {f"the file is {name}": 1}
        with pytest.raises(BadRecordError, match=rf"a.txt:1: the file is {name}.*skips such documents"):
            list(DocumentReader((path,), separator=separator))


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("first", ["a", "id", "abc\r"])
def test_a_short_first_line_in_utf_16_is_noticed(first, encoding, tmp_path):
    (tmp_path / "a.txt").write_bytes(f"{first}\nanother line\n".encode(encoding))
    with pytest.raises(BadRecordError, match="in UTF-16: expected UTF-8"):
        list(TextReader((tmp_path / "a.txt",), on_bad="skip"))


@pytest.mark.parametrize("ending", ["", "\r", "\r\r"])
def test_a_file_whose_lines_end_in_cr_only_is_refused_by_every_reader_of_lines(tmp_path, reading, ending):
    name, text, read = reading
    if reading in [READERS[kind] for kind in ("documents", "parts", "folder", "squad")]:
        assert reads_cr_as_any_character(tmp_path / name, text, read)
        return
    (tmp_path / name).write_bytes((text.strip().replace("\n", "\r") + "\rmore" + ending).encode())
    message = rf"{name}:1: the lines of the file end in CR only, .*: expected LF or CRLF; tr .* converts it"
    with pytest.raises(BadRecordError, match=message):
        read(tmp_path / name)


def reads_cr_as_any_character(path, text, read):
    path.write_bytes(text.encode())
    usual = read(path)
    path.write_bytes(text.strip().replace("\n", "\r").encode())
    found = read(path)
    return " ".join(found).split() == " ".join(usual).split()


@pytest.mark.parametrize("contents", [bytes(8), bytes(5000), bytes(70) + b"\ntext\n", bytes(9) + b"\nt\n"])
def test_a_file_of_nul_bytes_is_not_called_utf_16(tmp_path, contents):
    (tmp_path / "a.txt").write_bytes(contents)
    with pytest.raises(BadRecordError, match=r"a\.txt:1: the file has NUL bytes: expected text in UTF-8"):
        list(TextReader((tmp_path / "a.txt",), on_bad="skip"))


@pytest.mark.parametrize("text", ["BZh is a name", "PK 1", "(a)", "a\0b", "a\0b\n", "\0\0", "", "a\r", "a\rb\n"])
def test_texts_that_resemble_other_formats_are_read(text, tmp_path):
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    assert read_text(tmp_path / "a.txt") == text
