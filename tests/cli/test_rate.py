import json
import sys

import pytest

from glassformer.cli import main
from glassformer.cli.rate import INPUT_FIELDS, _text_of
from glassformer.pipelines.translator import Translator
from glassformer.serve.rating_session import RatingSession
from pipelines.tiny_pipelines import make


@pytest.fixture
def files(tmp_path):
    records = [{"input": "the cat"}, {"source": "it is red"}, {"text": "a"}]
    (tmp_path / "inputs.jsonl").write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    (tmp_path / "one.jsonl").write_text('{"output": "x"}\n\n"y"\n{"text": "z"}\n', encoding="utf-8")
    (tmp_path / "two.txt").write_text("1\n2\n3\n", encoding="utf-8")
    return tmp_path


def call(monkeypatch, capsys, *arguments, code=None):
    monkeypatch.setattr(sys, "argv", ["glassformer", "rate", *map(str, arguments)])
    if code is None:
        main()
    else:
        with pytest.raises(SystemExit) as caught:
            main()
        assert caught.value.code == code
    return capsys.readouterr()


def test_answers_in_a_file_are_reported(files, monkeypatch, capsys):
    words = [
        "--data",
        files / "inputs.jsonl",
        files / "one.jsonl",
        f"b={files / 'two.txt'}",
        "--out",
        files / "r.jsonl",
    ]
    assert "0 answers" in call(monkeypatch, capsys, *words, "--report").out
    outputs = {"one": ["x", "y", "z"], "b": ["1", "2", "3"]}
    session = RatingSession(["the cat", "it is red", "a"], outputs, files / "r.jsonl", "choice")
    for item in range(3):
        session.answer("ann", item, session.order("ann", item).index("b"))
    printed = call(monkeypatch, capsys, *words, "--report", "--json").out
    found = json.loads(printed)
    assert found["scores"][0] == {"system": "b", "score": 1.0, "low": 1.0, "high": 1.0}
    assert found["n_answers"] == 3


def test_a_model_writes_its_outputs_first(files, monkeypatch, capsys):
    make(Translator).save(files / "translator", "A tiny random model.")
    words = ["--data", files / "inputs.jsonl", files / "translator", files / "one.jsonl", "--out", files / "r.jsonl"]
    printed = call(monkeypatch, capsys, *words, "--report", "--device", "cpu")
    assert "translator" in printed.out
    assert "writes 3 outputs" in printed.err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--data", "inputs.jsonl"], 2, "SYSTEMS is missing"),
        (["one.jsonl"], 2, "--data is missing"),
        (["--data", "inputs.csv", "one.jsonl"], 2, "expected a file that ends in .jsonl or .txt"),
        (["--data", "inputs.jsonl", "one.jsonl"], 1, "expected at least 2"),
        (["--data", "two.txt", "one.jsonl", "bad.jsonl"], 1, "bad.jsonl:1 is not JSON"),
        (["--data", "two.txt", "one.jsonl", "short.txt"], 1, "short has 1 outputs: expected 3"),
        (["--data", "two.txt", "one.jsonl", "two.txt", "--port", "-1"], 2, "--port -1: expected 0 to 65535"),
    ],
)
def test_mistakes_are_named(files, monkeypatch, capsys, words, code, message):
    monkeypatch.chdir(files)
    (files / "bad.jsonl").write_text("{", encoding="utf-8")
    (files / "short.txt").write_text("1\n", encoding="utf-8")
    assert message in call(monkeypatch, capsys, *words, "--report", code=code).err


def test_a_question_comes_with_its_context(tmp_path):
    record = {"question": "what?", "context": "it is red"}
    assert _text_of(record, INPUT_FIELDS, 0, tmp_path) == "what?\tit is red"
    with pytest.raises(ValueError, match="record 2 has no text"):
        _text_of({"x": 1}, INPUT_FIELDS, 1, tmp_path)


def test_only_a_line_feed_ends_a_line(files, monkeypatch, capsys):
    """As in `run`, whose outputs are rated: otherwise outputs would stand beside the inputs of other items."""
    (files / "in.txt").write_bytes("\ufeffa\u2028b\r\nc\x85d\r\n".encode())
    (files / "one.txt").write_bytes("x\u2029y\nz\x0c\n".encode())
    (files / "two.txt").write_bytes(b"1\n2\n")
    words = ["--data", files / "in.txt", files / "one.txt", files / "two.txt", "--out", files / "r.jsonl"]
    call(monkeypatch, capsys, *words, "--report")
    expected = RatingSession(
        ["a\u2028b", "c\x85d"], {"one": ["x\u2029y", "z\x0c"], "two": ["1", "2"]}, files / "r.jsonl", "choice"
    )
    assert expected.answers == [], "the session of the file is the same"
    (files / "two.txt").write_bytes(b"1\n\xff\n")
    assert "two.txt:2: not valid UTF-8" in call(monkeypatch, capsys, *words, "--report", code=1).err
