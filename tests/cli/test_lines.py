"""Lines in, lines out: encodings, bad lines, files and the progress bar."""

import io
import json
import lzma
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.mirror import Mirror
from glassformer.cli.lines import read_available, run_lines
from glassformer.pipelines.extractor import Extractor
from glassformer.pipelines.translator import Translator
from pipelines.tiny_pipelines import make


def test_lines_after_a_bad_one_are_answered_and_counted(run_bytes):
    lines = [f"line {number}" for number in range(2500)]
    lines[999] = lines[1000] = lines[2499] = "bad"
    tool = Mirror()
    code, out, err = run_bytes(tool, "\n".join(lines).encode())
    assert code == 1
    assert out.decode() == "".join(f"{line}\n".replace("bad\n", "\n") for line in lines)
    assert [line.split(": ")[1] for line in err.splitlines()[:-1]] == ["stdin:1000", "stdin:1001", "stdin:2500"]
    assert tool.n_calls < 100  # the bad ones are found by halves, not by asking for each line


def test_on_bad_error_stops_at_the_first_bad_line_after_the_answers_before_it(run_bytes):
    code, out, err = run_bytes(Mirror(), b"one\ntwo\nbad\nfour\n", "--on-bad", "error")
    assert (code, out) == (1, b"one\ntwo\n")
    assert err == "glassformer: stdin:3: 'bad' is bad (--on-bad skip continues with the next line)\n"


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1", "utf-16"])
def test_text_is_utf8_in_every_locale(run_bytes, encoding):
    data = "Käse\u2028\u0130\n\U0001f600\n".encode()
    assert run_bytes(Mirror(), data, encoding=encoding) == (0, data, "")


def test_a_line_that_is_not_utf8_is_bad_and_the_rest_is_not(run_bytes):
    code, out, err = run_bytes(Mirror(), b"one\n\xe4\n\xed\xa0\x80\nfour\n")
    assert (code, out) == (1, b"one\n\n\nfour\n")
    assert err.splitlines()[:2] == ["glassformer: stdin:2: not valid UTF-8", "glassformer: stdin:3: not valid UTF-8"]


def test_a_byte_order_mark_before_the_first_line_is_dropped(run_bytes):
    assert run_bytes(Mirror(), b"\xef\xbb\xbfone\n\xef\xbb\xbftwo\n") == (0, b"one\n\xef\xbb\xbftwo\n", "")


def test_only_a_line_feed_separates_lines(run_bytes):
    line = "a\rb\x0bc\x0cd\x1ce\x85f\u2028g\u2029h"
    assert run_bytes(Mirror(), f"{line}\r\n\n{line}".encode()) == (0, f"{line}\n\n{line}\n".encode(), "")
    assert run_bytes(Mirror(), b"") == (0, b"", "")
    assert run_bytes(Mirror(), b"\n") == (0, b"\n", "")


COUNT_LINES = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore Ctrl-C
from glassformer.cli.lines import run_lines
try:
    run_lines(lambda lines: [f"{line} ({len(lines)} at once)" for line in lines])
except KeyboardInterrupt:
    sys.exit(130)
assert "torch" not in sys.modules
"""


@pytest.fixture
def counting_process():
    """A process that answers each line of its stdin with the line and the number of lines it was answered with."""
    with subprocess.Popen([sys.executable, "-c", COUNT_LINES], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as found:
        killer = threading.Timer(60, found.kill)
        killer.start()
        yield found
        killer.cancel()
        found.kill()


def test_a_slow_pipe_is_answered_line_by_line_and_a_fast_one_in_full_chunks(counting_process):
    stdin, stdout = counting_process.stdin, counting_process.stdout
    for line in (b"\xef\xbb\xbfone\r\n", "zwölf\n".encode()):
        stdin.write(line[:6])
        stdin.flush()
        time.sleep(0.03)  # the rest of the line, and even of a character, comes later
        stdin.write(line[6:])
        stdin.flush()
        text = line.decode("utf-8-sig").strip()
        assert stdout.readline().decode() == f"{text} (1 at once)\n"  # before the next line is written
    stdin.write(b"".join(b"%d\n" % number for number in range(2500)) + b"last")
    stdin.close()
    sizes = [1000] * 2000 + [501] * 501
    expected = [f"{text} ({size} at once)" for text, size in zip([*range(2500), "last"], sizes, strict=True)]
    assert stdout.read().decode().splitlines() == expected
    assert counting_process.wait() == 0


def test_ctrl_c_ends_a_command_that_waits_for_a_line(counting_process):
    counting_process.stdin.write(b"one\n")
    counting_process.stdin.flush()
    assert counting_process.stdout.readline() == b"one (1 at once)\n"
    counting_process.send_signal(signal.SIGINT)
    assert counting_process.wait() == 130


def test_a_named_pipe_is_read_as_stdin_is(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(b"\xef\xbb\xbfone\r\n\xefbf\ntwo",))
    writer.start()
    seen = []
    with pytest.raises(ValueError, match="1 of 3 lines are bad"):
        run_lines(lambda lines: seen.extend(lines) or lines, input=tmp_path / "pipe")
    writer.join()
    assert seen == ["one", "two"]


class Trickle(io.BytesIO):
    """A stream whose reads give a few bytes each."""

    def read1(self, size):
        return super().read1(min(size, 3))


@given(st.lists(st.binary(max_size=7), max_size=9), st.integers(1, 4))
def test_lines_are_put_together_from_any_parts(parts, size):
    data = b"\n".join(parts)
    found = list(read_available(Trickle(data), size))
    assert b"".join(line for lines in found for line in lines) == data
    assert [line for lines in found for line in lines] == list(io.BytesIO(data))
    assert all(1 <= len(lines) <= size for lines in found)


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


PAIR = "what color is it?\tit is red."


def test_files_are_read_and_written_as_pipes_are(run, tmp_path):
    lines = "the cat\n\nthe dog\n"
    (tmp_path / "in.txt").write_bytes(b"\xef\xbb\xbf" + lines.encode())
    piped = run(make(Translator), stdin=lines)[1]
    out = tmp_path / "out.txt"
    code, shown, err = run(make(Translator), "--input", tmp_path / "in.txt", "--output", out)
    assert (code, shown, err) == (0, [], "")
    assert out.read_bytes().decode().split("\n")[:-1] == piped
    assert [file.name for file in sorted(tmp_path.iterdir())] == ["in.txt", "out.txt"]
    code, shown, err = run(make(Translator), "--input", tmp_path / "in.txt")
    assert (code, shown) == (0, piped)


def test_an_output_file_is_written_whole_or_not_at_all(run, tmp_path):
    (tmp_path / "in.txt").write_text(f"{PAIR}\nno tab\n{PAIR}\n", encoding="utf-8")
    options = ("--input", tmp_path / "in.txt", "--output", tmp_path / "out.txt")
    code, _, err = run(make(Extractor), *options, "--on-bad", "error")
    assert code == 1
    assert err.startswith(f"glassformer: {tmp_path / 'in.txt'}:2: 'no tab' is not a question")
    assert err.endswith(f"{tmp_path / 'out.txt'} was not written\n")
    assert [file.name for file in tmp_path.iterdir()] == ["in.txt"]
    code, _, err = run(make(Extractor), *options)
    assert code == 1
    assert "1 of 3 lines are bad" in err
    assert (tmp_path / "out.txt").read_bytes().count(b"\n") == 3
    assert not [file for file in tmp_path.iterdir() if file.name.endswith(".part")]


def test_a_file_that_came_in_the_meantime_is_not_replaced(run, tmp_path, monkeypatch):
    out, tool = tmp_path / "out.txt", make(Translator)
    answer_lines = tool.answer_lines

    def answer(lines, request):
        out.write_text("somebody else's", encoding="utf-8")
        return answer_lines(lines, request)

    monkeypatch.setattr(tool, "answer_lines", answer)
    code, _, err = run(tool, "--output", out, stdin="the cat\n")
    assert (code, out.read_text(encoding="utf-8")) == (1, "somebody else's")
    assert err.startswith(f"glassformer: --output {out} exists")


def test_a_bad_line_is_an_object_with_its_error_in_json(run):
    code, lines, err = run(make(Extractor), "--json", stdin=f"{PAIR}\nno tab\n")
    assert code == 1
    assert json.loads(lines[1])["error"].startswith("'no tab' is not a question about a text")
    assert err.splitlines()[-1].endswith("an object with the error stands for each in the output")


def test_a_progress_bar_is_shown_for_a_file_on_a_terminal_alone(run, tmp_path):
    (tmp_path / "in.txt").write_text("the cat\n" * 3, encoding="utf-8")
    options = ("--input", tmp_path / "in.txt")
    assert "in.txt" in run(make(Translator), *options, "--output", tmp_path / "1", is_terminal=True)[2]
    assert "in.txt" in run(make(Translator), *options, is_terminal=True)[2]  # stdout is a pipe here
    assert run(make(Translator), *options, "--output", tmp_path / "2", "--quiet", is_terminal=True)[2] == ""
    assert run(make(Translator), *options, "--output", tmp_path / "3")[2] == ""
    assert run(make(Translator), is_terminal=True, stdin="the cat\n")[2] == ""


def test_the_outputs_of_all_parts_are_that_of_the_whole_file(run_bytes, tmp_path):
    (tmp_path / "in.txt").write_bytes("".join(f"line {number}\n" for number in range(50)).encode() + b"bad\nend")
    flags = ("--input", str(tmp_path / "in.txt"))
    whole = run_bytes(Mirror(), b"", *flags)
    parts = [run_bytes(Mirror(), b"", *flags, "--part", f"{index}/3") for index in (1, 2, 3)]
    assert b"".join(out for _, out, _ in parts) == whole[1]
    assert "in.txt:51: 'bad' is bad" in parts[2][2]
    assert "--part 1/2 without an --input file" in run_bytes(Mirror(), b"", "--part", "1/2")[2]
    assert "--part 3/2: expected I/N" in run_bytes(Mirror(), b"", *flags, "--part", "3/2")[2]


def test_compressed_lines_and_utf_16_are_one_error(run_bytes, tmp_path):
    for data, message in (
        (lzma.compress(b"a\nb\n"), "the file is compressed by xz: expected plain text, or a .gz file"),
        ("one\ntwo\n".encode("utf-16"), "the file is in UTF-16: expected UTF-8"),
    ):
        code, out, err = run_bytes(Mirror(), data)
        assert (code, out) == (1, b"")
        assert err.startswith(f"glassformer: stdin:1: {message}")
        (tmp_path / "a").write_bytes(data)
        code, out, err = run_bytes(Mirror(), b"", "--input", str(tmp_path / "a"))
        assert (code, out) == (1, b"")
        assert f"a:1: {message}" in err
