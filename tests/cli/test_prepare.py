"""`glassformer prepare`."""

import pytest

from glassformer.cli.flag_parser import UsageError
from glassformer.cli.prepare import prepare, prepare_flags
from glassformer.tasks.prepare_units import PREPARED_TASKS
from glassformer.tasks.tokenized_corpus import TokenizedCorpus


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("source\ttarget\n" + "".join(f"one {n}\ttwo {n}\n" for n in range(60)), encoding="utf-8")
    return path


def test_a_corpus_is_prepared_in_parts(table, tmp_path, capsys):
    out = tmp_path / "data"
    flags = ["translation", "--source", str(table), "--out", str(out), "--quiet", "--processes", "1"]
    prepare([*flags, "--part", "2/2"])
    assert "wrote part 2 of 2" in capsys.readouterr().out
    prepare([*flags, "--part", "1/2"])
    assert "55 examples in 1 shard\n" in capsys.readouterr().out
    assert TokenizedCorpus(out).options["model.vocab_size"] == 4000, "by the size of the data"
    before = (out / "prepared.json").stat().st_mtime_ns
    for more in ([], ["--part", "1/2"]):
        prepare([*flags, *more])
        assert capsys.readouterr().out == f"{out} is complete already: 55 examples in 1 shard\n"
    assert (out / "prepared.json").stat().st_mtime_ns == before
    next((out / "units").glob("*/unit.json")).unlink()
    prepare(flags)
    assert capsys.readouterr().out == f"wrote {out}: 55 examples in 1 shard\n", "the unit was made anew"


def test_one_shard_is_one_shard(table, tmp_path, capsys):
    prepare(["translation", "--source", str(table), "--out", str(tmp_path / "data"), "--processes", "1"])
    assert "55 examples in 1 shard, 5 to validate on\n" in capsys.readouterr().err


def test_wrong_commands_are_refused(table, tmp_path):
    for arguments, problem in (
        ([], "prepare needs a task first, but found no task: expected translation or language"),
        (["tagging"], "found tagging"),
        (["translation", "--source", str(table)], "--out is missing"),
        (["translation", "--source", str(table), "--out", "x", "--processes", "-1"], "--processes -1: expected 0"),
    ):
        with pytest.raises(UsageError, match=problem):
            prepare(arguments)
    with pytest.raises(ValueError, match="no data: expected"):
        prepare(["translation", "--out", str(tmp_path / "x")])


@pytest.mark.parametrize("task", PREPARED_TASKS)
def test_the_help_lists_data_and_tokenizer_options(task, capsys):
    prepare([task, "--help"])
    text = capsys.readouterr().out
    assert all(flag in text for flag in ("--out", "--part", "--vocab-size", "--mix", "--lowercase"))
    assert "corpus" not in prepare_flags(task)
    prepare(["--help"])
    assert "array job" in capsys.readouterr().out
