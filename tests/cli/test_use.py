"""`glassformer run`: one line out for each line in, whatever the lines hold."""

import io
import os
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.cli import main
from glassformer.cli.flag_parser import UsageError, call_function
from glassformer.cli.info import info
from glassformer.cli.lines import run_lines
from glassformer.cli.run import _as_utf8
from glassformer.cli.run import run as run_command
from glassformer.models import DecoderModel, EncoderDecoderModel, EncoderModel
from glassformer.pipelines.answerer import Answerer
from glassformer.pipelines.encoder_pipeline import Reader
from glassformer.pipelines.extractor import Extractor
from glassformer.pipelines.language_model import LanguageModel
from glassformer.tasks.configs.small_models import small_decoder, small_encoder, small_encoder_decoder
from glassformer.text import Tokenizer, TokenizerConfig

TEXTS = ["what colour is it? it is red."]
SIZES = {"d_model": 16, "d_ff": 16, "n_heads": 2}


class Mirror:
    """Answers each line with itself; refuses lines that begin with "bad"."""

    def __init__(self):
        self.n_calls = 0

    def run(self, lines):
        self.n_calls += 1
        for line in lines:
            if line.startswith("bad"):
                raise ValueError(f"{line!r} is bad")
        return list(lines)


@pytest.fixture
def run(monkeypatch):
    """Runs `glassformer run` of a tool on bytes: the exit code, and the bytes of stdout and stderr."""

    def call(tool, data, *options, encoding="utf-8"):
        streams = [io.TextIOWrapper(io.BytesIO(part), encoding=encoding) for part in (data, b"", b"")]
        for name, stream in zip(("stdin", "stdout", "stderr"), streams, strict=True):
            monkeypatch.setattr(sys, name, stream)
        monkeypatch.setattr("glassformer.pipelines.load.load", lambda path, **_: tool)
        monkeypatch.setattr(sys, "argv", ["glassformer", "run", "m", *options])
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = ended.code
        streams[2].flush()
        return code, streams[1].buffer.getvalue(), streams[2].buffer.getvalue().decode()

    return call


def small_tool(kind):
    tokenizer = Tokenizer.train(TEXTS, 300, TokenizerConfig(prefix_space=False))
    if kind == "extraction":
        model = EncoderModel(small_encoder(vocab_size=tokenizer.vocab_size, token_types=2, head="span", **SIZES))
        return Extractor(model.eval(), Reader.own(tokenizer), abstains=False, overlap=8, longest_answer=5)
    config = small_encoder_decoder(
        vocab_size=tokenizer.vocab_size, n_encoder_layers=1, n_decoder_layers=1, max_len=64, **SIZES
    )
    return Answerer(EncoderDecoderModel(config).eval(), tokenizer, tokenizer)


@pytest.mark.parametrize("kind", ["answering", "extraction"])
def test_a_line_without_a_tab_costs_no_other_line_its_answer(run, kind):
    tool = small_tool(kind)
    good = "what colour is it?\tit is red."
    code, alone, _ = run(tool, f"{good}\n".encode())
    assert code == 0
    assert alone.count(b"\n") == 1
    lines = [good] * 12
    lines[4], lines[8], lines[9] = "no tab here", "", "question\t "
    code, out, err = run(tool, "".join(f"{line}\n" for line in lines).encode())
    assert code == 1
    expected = [alone if line == good else b"\n" for line in lines]
    assert out.splitlines(keepends=True) == expected
    assert err.splitlines() == [
        "glassformer: stdin:5: 'no tab here' is not a question about a text: expected a question, a tab and a text",
        "glassformer: stdin:10: 'question\\t ' is not a question about a text: expected a question, a tab and a text",
        "glassformer: 2 of 12 lines are bad: an empty line stands for each in the output",
    ]


def test_lines_after_a_bad_one_are_answered_and_counted(run):
    lines = [f"line {number}" for number in range(2500)]
    lines[999] = lines[1000] = lines[2499] = "bad"
    tool = Mirror()
    code, out, err = run(tool, "\n".join(lines).encode())
    assert code == 1
    assert out.decode() == "".join(f"{line}\n".replace("bad\n", "\n") for line in lines)
    assert [line.split(": ")[1] for line in err.splitlines()[:-1]] == ["stdin:1000", "stdin:1001", "stdin:2500"]
    assert tool.n_calls < 100  # the bad ones are found by halves, not by asking for each line


def test_on_bad_error_stops_at_the_first_bad_line_after_the_answers_before_it(run):
    code, out, err = run(Mirror(), b"one\ntwo\nbad\nfour\n", "--on-bad", "error")
    assert (code, out) == (1, b"one\ntwo\n")
    assert err == "glassformer: stdin:3: 'bad' is bad (--on-bad skip continues with the next line)\n"


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1", "utf-16"])
def test_text_is_utf8_in_every_locale(run, encoding):
    data = "Käse\u2028\u0130\n\U0001f600\n".encode()
    assert run(Mirror(), data, encoding=encoding) == (0, data, "")


def test_a_line_that_is_not_utf8_is_bad_and_the_rest_is_not(run):
    code, out, err = run(Mirror(), b"one\n\xe4\n\xed\xa0\x80\nfour\n")
    assert (code, out) == (1, b"one\n\n\nfour\n")
    assert err.splitlines()[:2] == ["glassformer: stdin:2: not valid UTF-8", "glassformer: stdin:3: not valid UTF-8"]


def test_a_byte_order_mark_before_the_first_line_is_dropped(run):
    assert run(Mirror(), b"\xef\xbb\xbfone\n\xef\xbb\xbftwo\n") == (0, b"one\n\xef\xbb\xbftwo\n", "")


def test_only_a_line_feed_separates_lines(run):
    line = "a\rb\x0bc\x0cd\x1ce\x85f\u2028g\u2029h"
    assert run(Mirror(), f"{line}\r\n\n{line}".encode()) == (0, f"{line}\n\n{line}\n".encode(), "")
    assert run(Mirror(), b"") == (0, b"", "")
    assert run(Mirror(), b"\n") == (0, b"\n", "")


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=6), st.integers(1, 3))
def test_there_are_as_many_lines_out_as_in(lines, size):
    data = "".join(f"{line.replace(chr(10), ' ')}\n" for line in lines).encode()
    streams = (
        io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"),
        io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="\n"),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", streams[0])
        patch.setattr(sys, "stdout", streams[1])
        run_lines(lambda texts: [f"{text}\n{text}" for text in texts], size=size)
    assert streams[1].buffer.getvalue().count(b"\n") == len(lines)


def test_wrong_options_are_one_error_before_any_line(run):
    tool = small_tool("answering")
    for options in (("--beam", "0"), ("--temperature", "-1"), ("--temperature", "nan")):
        code, out, err = run(tool, b"a\tb\n" * 3, *options)
        assert (code, out) == (2, b"")
        assert err.startswith(f"glassformer: {options[0]} ")
        assert len(err.splitlines()) == 1


def test_a_decoder_that_cannot_chat_says_so_once(run):
    tokenizer = Tokenizer.train(TEXTS, 300, TokenizerConfig(prefix_space=False))
    config = small_decoder(vocab_size=tokenizer.vocab_size, n_decoder_layers=1, max_len=16, **SIZES)
    tool = LanguageModel(DecoderModel(config).eval(), tokenizer)
    code, out, err = run(tool, b"a\nb\n", "--chat")
    assert (code, out) == (1, b"")
    assert err.startswith("glassformer: the model has no chat template")


def test_a_prompt_that_the_locale_could_not_decode_is_read_as_utf8(run):
    assert _as_utf8("caf\udcc3\udca9") == "café"
    code, out, err = run(Mirror(), b"", "--prompt", "caf\udcff")
    assert (code, out) == (2, b"")
    assert err == "glassformer: the argument 'caf\\udcff' is not valid UTF-8: expected text\n"


class FullDisk(io.RawIOBase):
    """Cannot be written to, until it is emptied."""

    is_full = True

    def writable(self):
        return True

    def write(self, data):
        if self.is_full:
            raise OSError(28, "No space left on device")
        return len(data)


def test_a_full_disk_is_told_without_a_traceback(run, monkeypatch):
    disk, tool = FullDisk(), Mirror()

    def answer(lines):
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(disk), encoding="utf-8"))
        return lines

    tool.run = answer
    monkeypatch.setattr("glassformer.cli.discard_output", lambda: setattr(disk, "is_full", False))
    code, _, err = run(tool, b"one\n")
    assert code == 1
    assert "glassformer: stdout cannot be written: No space left on device" in err
    assert not disk.is_full


CLOSED = """
import os, sys
os.close(int(sys.argv[1]))
os.execv(sys.executable, [sys.executable, "-m", "glassformer", *sys.argv[2:]])
"""


@pytest.mark.skipif(os.name == "nt", reason="closes descriptors as a POSIX shell does")
@pytest.mark.parametrize(
    ("descriptor", "message"),
    [(0, "glassformer: stdin is closed: expected lines"), (1, "glassformer: stdout is closed: expected a terminal")],
)
def test_a_closed_stream_is_told_in_a_line(tmp_path, descriptor, message):
    command = [sys.executable, "-c", CLOSED, str(descriptor), "run", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 1
    assert result.stderr.startswith(message)
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.skipif(os.name == "nt", reason="closes descriptors as a POSIX shell does")
def test_errors_go_nowhere_rather_than_into_the_output_where_stderr_is_closed(tmp_path):
    command = [sys.executable, "-c", CLOSED, "2", "run", str(tmp_path), "--beam", "0"]
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=120, check=False)
    assert (result.returncode, result.stdout) == (2, b"")


def test_a_text_or_a_file_after_the_model_says_how_to_give_it(tmp_path, monkeypatch):
    (tmp_path / "my lines.txt").write_text("one\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for word, advice in (("my lines.txt", "use --input 'my lines.txt'"), ("a line", "echo 'a line' | glassformer run")):
        with pytest.raises(UsageError, match=f"'{word}' is not expected here: .*{re.escape(advice)}"):
            call_function(run_command, ["model", word], "run")
    with pytest.raises(UsageError, match="'two' is not expected here: glassformer info --help shows what is"):
        call_function(info, ["model", "two"], "info")


@pytest.mark.parametrize(("name", "kind"), [("stories.bin", "file"), ("m.GGUF", "file"), ("my-model", "model folder")])
def test_a_missing_model_is_called_a_file_or_a_folder_by_its_name(name, kind, tmp_path):
    for verb in (run_command, info):
        with pytest.raises(FileNotFoundError, match=f"{name}: no such {kind}: "):
            call_function(verb, [str(tmp_path / name), *(["--prompt", "a"] if verb is run_command else [])], "run")
