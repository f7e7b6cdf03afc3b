"""Progress on stderr: at once, at intervals, never on stdout, and not at all when quiet."""

import gzip
import io
import itertools
import sys

import pytest

from glassformer import progress
from glassformer.data.readers.pairs import PairReader
from glassformer.data.readers.text_files import read_lines
from glassformer.progress import Step, reporting, say, size_of, track


@pytest.fixture
def now(monkeypatch):
    moment = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: moment[0])
    return moment


def test_the_first_step_is_printed_at_once_and_later_ones_at_intervals(now, capsys):
    with reporting():
        with Step("reading"):
            pass
        with Step("tokenizing", 29_000) as step:
            for _ in range(29):
                now[0] += 1
                step.advance(1000)
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines() == ["reading ...", "tokenizing: 20,000 of 29,000"]


def test_nothing_is_printed_outside_a_command_or_when_quiet(now, capsys):
    with Step("reading") as step:
        now[0] += 100
        step.advance()
    assert list(track([1, 2, 3], "reading")) == [1, 2, 3]
    with reporting(quiet=True), reporting(), Step("reading"):
        say("a note")
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", "")


def test_a_quiet_part_of_a_command_is_silent(now, capsys):
    with reporting():
        with reporting(quiet=True):
            with reporting(), Step("reading") as step:
                now[0] += 100
                step.advance()
            say("a note")
            assert list(track([1, 2, 3], "counting")) == [1, 2, 3]
        with Step("writing"):
            say("another note")
    assert capsys.readouterr().err.splitlines() == ["writing ...", "another note"]


def test_quiet_ends_with_its_command(now, capsys):
    with pytest.raises(KeyError), reporting(quiet=True):
        raise KeyError
    with reporting(), Step("reading"):
        pass
    assert capsys.readouterr().err == "reading ...\n"


def test_say_prints_outside_a_command_too(capsys):
    say("a note")
    assert capsys.readouterr().err == "a note\n"


def test_an_unknown_total_shows_a_count_and_a_text_replaces_the_line(now, capsys):
    with reporting(), Step("reading") as step:
        now[0] += 20
        step.advance(1200)
        now[0] += 20
        step.show(3, text="update 3/7  loss 0.1", total=7)
        now[0] += 20
        step.advance()
    assert capsys.readouterr().err.splitlines() == [
        "reading ...",
        "reading: 1,200",
        "update 3/7  loss 0.1",
        "reading: 4 of 7",
    ]


def test_a_terminal_shows_transient_bars(monkeypatch):
    console = pytest.importorskip("rich.console")
    stream, real = io.StringIO(), console.Console
    monkeypatch.setattr(console, "Console", lambda **options: real(file=stream, force_terminal=True, width=80))
    with reporting():
        with Step("validating [1/2]", 10) as outer, reporting(), Step("writing texts", 5) as inner:
            inner.advance(5)
            outer.advance(3)
            say("a note")
            reporter = progress._REPORTER.get()
            reporter.bars.refresh()
        assert not reporter.bars.tasks
    assert "a note" in stream.getvalue()
    assert "validating [1/2]: 3 of 10" in stream.getvalue()
    assert progress._REPORTER.get() is None


def test_without_rich_lines_are_printed(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with reporting(), Step("reading"):
        say("a note")
    assert capsys.readouterr().err == "reading ...\na note\n"


def test_track_counts_and_yields_all_items(now, capsys):
    def items():
        for number in range(1100):
            now[0] += 0.03
            yield number

    with reporting():
        assert list(track(items(), "tokenizing")) == list(range(1100))
        assert list(itertools.islice(track(range(10), "tokenizing"), 3)) == [0, 1, 2]
    assert capsys.readouterr().err.splitlines() == ["tokenizing ...", "tokenizing: 1,000"]


def test_reading_a_file_shows_progress_and_a_second_pass_knows_the_total(tmp_path, capsys):
    (tmp_path / "a.en").write_text("one\ntwo\n", encoding="utf-8")
    with gzip.open(tmp_path / "a.de.gz", "wt") as file:
        file.write("eins\nzwei\n")
    with reporting():
        assert [line.text for line in read_lines(tmp_path / "a.de.gz")] == ["eins", "zwei"]
    assert capsys.readouterr().err == "reading a.de.gz ...\n"
    reader = PairReader([tmp_path / "a.en"], [tmp_path / "a.de.gz"])
    assert size_of(reader) is None
    assert size_of(list(reader)) == 2
    assert size_of(reader) == 2
