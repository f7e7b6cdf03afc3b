import gzip
import json

import pytest

from glassformer.data.readers.pairs import Pair, PairReader
from glassformer.data.readers.records import BadRecordError

PAIRS = [Pair("a cat", "eine Katze"), Pair("a dog, two", "ein Hund"), Pair('say "hi"', 'sag "hallo"')]


def write(path, text):
    data = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_every_format_gives_the_same_pairs(tmp_path, ending):
    source = write(tmp_path / f"a.en{ending}", "".join(f"{p.source}\n" for p in PAIRS))
    target = write(tmp_path / f"a.de{ending}", "".join(f"{p.target}\r\n" for p in PAIRS))
    quoted = "".join('"{}","{}",x\n'.format(*(t.replace('"', '""') for t in p)) for p in PAIRS)
    tables = [
        write(tmp_path / f"a.tsv{ending}", "source\ttarget\n" + "".join(f"{p.source}\t{p.target}\n" for p in PAIRS)),
        write(tmp_path / f"a.csv{ending}", "source,target,more\n" + quoted),
        write(tmp_path / f"a.jsonl{ending}", "".join(json.dumps(p._asdict()) + "\n" for p in PAIRS)),
    ]
    assert list(PairReader([source], [target])) == PAIRS
    for table in tables:
        assert list(PairReader([table])) == PAIRS
    assert list(PairReader(tables)) == PAIRS * 3


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.tsv", "source\ttarget\na\tb\nonly\n", r"a\.tsv:3: 1 column, expected 2"),
        ("a.tsv", "source\ttarget\na\t \n", r"a\.tsv:2: empty target"),
        ("a.tsv", b"source\ttarget\na\tb\n\xff\xfe\tb\n", r"a\.tsv:3: not valid UTF-8"),
        ("a.jsonl", '{"source": "a", "target": "b"}\n{"source": 3}\n', r"a\.jsonl:2: no text under 'source'"),
        ("a.jsonl", "[]\n", r"a\.jsonl:1: not a JSON object"),
        ("a.jsonl", "{\n", r"a\.jsonl:1: not JSON"),
        ("a.csv", 'source,target\n,"b"\n', r"a\.csv:2: empty source"),
    ],
)
def test_a_bad_record_names_its_place_or_is_counted(tmp_path, name, text, message):
    path = write(tmp_path / name, text)
    with pytest.raises(BadRecordError, match=message):
        list(PairReader([path]))
    reader = PairReader([path], on_bad="skip")
    good = list(reader)
    assert sum(reader.skipped.values()) == 1
    assert all(pair.source and pair.target for pair in good)
    assert list(reader) == good, "a second pass is the same"


def test_unequal_line_counts_name_the_place_and_cannot_be_skipped(tmp_path):
    source, target = write(tmp_path / "a.en", "a\nb\nc\n"), write(tmp_path / "a.de", "x\ny\n")
    for on_bad in ("error", "skip"):
        with pytest.raises(BadRecordError, match=r"a\.en:3: .*a\.de has fewer lines"):
            list(PairReader([source], [target], on_bad=on_bad))
    with pytest.raises(BadRecordError, match=r"a\.en:3: .*a\.de has fewer lines"):
        list(PairReader([target], [source]))


def test_missing_columns_and_files_are_named(tmp_path):
    path = write(tmp_path / "a.tsv", "english\tgerman\na\tb\n")
    with pytest.raises(BadRecordError, match=r"a\.tsv:1: no column 'source' in the header \(english, german\)"):
        list(PairReader([path]))
    assert list(PairReader([path], source_column="english", target_column="german")) == [Pair("a", "b")]
    with pytest.raises(FileNotFoundError, match=r"nowhere\.tsv"):
        PairReader([tmp_path / "nowhere.tsv"])
    with pytest.raises(ValueError, match="expected --target with its translations"):
        PairReader([write(tmp_path / "a.en", "a\n")])
    with pytest.raises(ValueError, match="1 source files and 2 target files"):
        PairReader([path], [path, path])


@pytest.mark.parametrize(("name", "kind"), [("a.tsv", "a table"), ("a.CSV.gz", "a table"), ("a.jsonl.gz", "JSONL")])
def test_a_table_beside_a_target_is_refused_instead_of_read_as_lines_of_text(tmp_path, name, kind):
    table, text = write(tmp_path / name, "en\tde\nEnglish\tDeutsch\n"), write(tmp_path / "a.txt", "one\ntwo\n")
    for files in ((table, table), (table, text), (text, table)):
        with pytest.raises(ValueError, match=rf"{name} is {kind}: leave out --target .*--source-column and"):
            PairReader(*([file] for file in files))


def test_one_file_as_source_and_target_is_refused(tmp_path):
    one, other = write(tmp_path / "a.en", "one\n"), write(tmp_path / "a.de", "eins\n")
    (tmp_path / "link").symlink_to(one)
    with pytest.raises(ValueError, match=r"a\.en is both source and target: expected two text files"):
        PairReader([one], [tmp_path / "link"])
    both_ways = PairReader([one, other], [other, one])
    assert list(both_ways) == [Pair("one", "eins"), Pair("eins", "one")]


def test_byte_order_marks_and_unusual_line_breaks_keep_files_aligned(tmp_path):
    (tmp_path / "a.en").write_bytes("one\u2028more\ntwo\n".encode("utf-8-sig"))
    (tmp_path / "a.de").write_bytes("eins\r\nzwei".encode("utf-8-sig"))
    pairs = list(PairReader([tmp_path / "a.en"], [tmp_path / "a.de"]))
    assert pairs == [Pair("one\u2028more", "eins"), Pair("two", "zwei")]


def test_sources_start_with_the_language_of_their_target_file(tmp_path):
    for name, text in (("a.en", "a cat\n"), ("a.de", "eine Katze\n"), ("a.fr.gz", "un chat\n")):
        write(tmp_path / name, text)
    files = [tmp_path / "a.en"] * 2, [tmp_path / "a.de", tmp_path / "a.fr.gz"]
    found = list(PairReader(*files, language_tags=True))
    assert found == [Pair(">>de<< a cat", "eine Katze"), Pair(">>fr<< a cat", "un chat")]
    with pytest.raises(ValueError, match="language_tags needs target files"):
        PairReader([write(tmp_path / "b.tsv", "source\ttarget\na\tb\n")], language_tags=True)
