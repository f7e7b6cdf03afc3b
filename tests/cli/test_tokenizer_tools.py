"""`glassformer tokenizer`: each action on small files."""

import io
import json
import sys

import pytest

from glassformer.cli import main
from glassformer.cli.tokenizer_tools import load_tokenizer
from glassformer.text.pretrained_tokenizers import PretrainedTokenizer
from glassformer.text.tokenizer import Tokenizer
from text.tokenizer_folders import WORDS, byte_level, write


@pytest.fixture
def call(monkeypatch, capsys):
    def called(*arguments, stdin=""):
        monkeypatch.setattr(sys, "argv", ["glassformer", "tokenizer", *map(str, arguments)])
        stream = (
            io.TextIOWrapper(io.BytesIO(stdin))
            if isinstance(stdin, bytes)
            else None
            if stdin is None
            else io.StringIO(stdin)
        )
        monkeypatch.setattr(sys, "stdin", stream)
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return called


@pytest.fixture
def files(tmp_path):
    write(tmp_path, en__txt=["hello world", "", "hello café zzz"], de__txt=["Größe zählt"])
    bert = {"tokenizer_class": "BertTokenizer"}
    write(tmp_path / "bert", vocab__txt=WORDS, tokenizer_config__json=bert, config__json={"model_type": "bert"})
    byte_level().save(str(tmp_path / "bytes.json"))
    return tmp_path


def test_a_trained_tokenizer_encodes_and_decodes(call, files):
    out = files / "my.json"
    code, printed, _ = call(
        "train", files / "en.txt", files / "de.txt", "--out", out, "--vocab-size", 300, "--special", "<x>"
    )
    assert (code, printed) == (0, f"wrote {out}: BPE, {load_tokenizer(out).vocab_size} tokens\n")
    assert load_tokenizer(out).special_id("<x>") == 4
    _, ids, _ = call("encode", out, stdin="hello café\n\n<x>\n")
    assert ids.splitlines()[1] == ""
    _, text, _ = call("decode", out, stdin=ids)
    assert text == "hello café\n\n<x>\n"
    _, listed, _ = call("encode", out, "--json", stdin="hello café\n")
    assert json.loads(listed) == [int(word) for word in ids.splitlines()[0].split()]
    assert call("decode", out, stdin=listed)[1] == "hello café\n"
    _, tokens, _ = call("encode", out, "--tokens", stdin="hello café\n")
    assert "".join(json.loads(tokens)) == " hello café"
    code, printed, error = call("decode", out, stdin="5 99999\n")
    assert (code, printed) == (1, "\n")
    assert f"stdin:1: token 99999: expected 0 to {load_tokenizer(out).vocab_size - 1}" in error
    code, _, error = call("train", files / "en.txt", "--out", out)
    assert code == 2
    assert "exists: expected a new file" in error


@pytest.mark.parametrize("kind", ["bpe", "unigram", "bytes", "characters"])
@pytest.mark.parametrize("text", ["", "\n", " \n\t\n"])
def test_texts_without_characters_are_refused(call, tmp_path, kind, text):
    (tmp_path / "empty.txt").write_text(text, encoding="utf-8")
    code, printed, error = call("train", tmp_path / "empty.txt", "--out", tmp_path / "my.json", "--kind", kind)
    assert (code, printed) == (1, "")
    assert f"expected at least one line that is not blank in {tmp_path / 'empty.txt'}" in error
    assert not (tmp_path / "my.json").exists()


@pytest.mark.parametrize(("kind", "parts"), [("bpe", "pairs"), ("unigram", "pieces")])
def test_fewer_tokens_than_asked_are_reported(call, files, kind, parts):
    out = files / "my.json"
    code, _, error = call("train", files / "en.txt", "--out", out, "--kind", kind, "--vocab-size", 4_000_000)
    size = load_tokenizer(out).vocab_size
    assert code == 0
    assert f"the texts have {parts} for only {size:,} of the 4,000,000 tokens asked for\n" in error
    _, _, error = call("train", files / "en.txt", "--out", files / "2.json", "--kind", kind, "--vocab-size", size)
    assert "asked for" not in error


@pytest.mark.parametrize("kind", ["bytes", "characters"])
def test_tokens_of_bytes_and_characters_are_as_many_as_there_are(call, files, kind):
    _, _, error = call("train", files / "en.txt", "--out", files / "my.json", "--kind", kind)
    assert "asked for" not in error


def test_inspect_reports_each_file(call, files):
    _, printed, _ = call("inspect", files / "bert", "--data", files / "en.txt", files / "de.txt", "--longest", 2)
    lines = printed.splitlines()
    assert lines[0] == f"{files / 'bert'}: WordPiece, {len(WORDS)} tokens"
    assert lines[1] == "  special tokens  [PAD] [UNK] [CLS] [SEP] [MASK]"
    assert lines[2] == '  longest tokens  "hello" "world"'
    assert "tokens/word" in lines[3]
    assert len(lines) == 8  # two files, and one text of each that does not come back
    found = json.loads(call("inspect", files / "bert", "--data", files / "en.txt", "--json")[1])
    about = found["files"][str(files / "en.txt")]
    assert (about["n_texts"], about["n_words"], about["n_unknown"]) == (2, 5, 1)


def test_compare_has_a_row_for_each_tokenizer_and_file(call, files):
    paths, data = (files / "bert", files / "bytes.json"), ("--data", files / "en.txt", files / "de.txt")
    _, printed, _ = call("compare", *paths, *data)
    lines = printed.splitlines()
    assert len(lines) == 5
    assert lines[3].endswith(" 0.00%     100.00%")
    rows = [json.loads(line) for line in call("compare", *paths, *data, "--json")[1].splitlines()]
    assert [row["path"] for row in rows] == [str(paths[0])] * 2 + [str(paths[1])] * 2
    assert rows[2]["round_trip_rate"] == 1.0
    code, _, error = call("compare", paths[0], *data)
    assert code == 2
    assert "two tokenizers or more" in error


def test_the_kind_of_tokenizer_is_recognized(files):
    assert isinstance(load_tokenizer(files / "bert"), PretrainedTokenizer)
    assert isinstance(load_tokenizer(files / "bytes.json"), PretrainedTokenizer)
    (files / "ours.json").write_text(Tokenizer.train(["a b"], 262).to_json(), encoding="utf-8")
    assert isinstance(load_tokenizer(files / "ours.json"), Tokenizer)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "tokenizer needs an action: expected one of train, encode"),
        (["trian"], "did you mean 'train'?"),
        (["encode", "nothing.json"], "no such file or folder"),
        (["inspect", "nothing", "--longest", "-1"], "expected 0 or more"),
    ],
)
def test_mistakes_are_explained(call, arguments, message):
    code, _, error = call(*arguments)
    assert code in (1, 2)
    assert message in error


def test_lines_that_are_no_ids_are_refused(call, files):
    code, printed, error = call("decode", files / "bytes.json", stdin="1 2\nfive\n3\n")
    assert code == 1
    assert len(printed.splitlines()) == 3
    assert printed.splitlines()[1] == ""
    assert "stdin:2: 'five': expected token ids" in error
    assert "1 of 3 lines are bad" in error


def test_encode_reads_lines_as_run_does(call, files):
    tokenizer = files / "bytes.json"
    plain = call("encode", tokenizer, stdin=b"caf\xc3\xa9\n\nb c\n")
    assert plain[0] == 0
    assert len(plain[1].splitlines()) == 3
    assert call("encode", tokenizer, stdin=b"\xef\xbb\xbfcaf\xc3\xa9\r\n\r\nb c") == plain
    code, printed, error = call("encode", tokenizer, stdin=b"caf\xc3\xa9\ncaf\xe9\nb c\n")
    assert (code, printed) == (1, plain[1])
    assert "stdin:2: not valid UTF-8" in error
    for flag in ("--json", "--tokens"):
        _, printed, _ = call("encode", tokenizer, flag, stdin=b"caf\xe9\nb c\n")
        first, second = map(json.loads, printed.splitlines())
        assert first == {"error": "not valid UTF-8"}
        assert isinstance(second, list)
    _, _, error = call("encode", tokenizer, stdin="caf\xe9\n".encode("utf-16"))
    assert "UTF-16" in error


def test_decode_reads_lines_as_run_does(call, files):
    plain = call("decode", files / "bytes.json", stdin=b"40 41\n42\n")
    assert plain[0] == 0
    assert call("decode", files / "bytes.json", stdin=b"\xef\xbb\xbf40 41\r\n42\r\n") == plain


@pytest.mark.parametrize("action", ["encode", "decode"])
def test_a_closed_stdin_is_an_error(call, files, action):
    code, printed, error = call(action, files / "bytes.json", stdin=None)
    assert (code, printed) == (1, "")
    assert "stdin is closed: expected lines of text" in error


def test_text_that_is_not_utf8_is_refused(call, files):
    (files / "bad.txt").write_bytes(b"ok\n\xff\n")
    code, _, error = call("inspect", files / "bytes.json", "--data", files / "bad.txt")
    assert code == 1
    assert "bad.txt:2" in error


def test_help_lists_the_actions(call):
    assert "compare" in call("--help")[1]
    assert "--longest" in call("inspect", "--help")[1]
