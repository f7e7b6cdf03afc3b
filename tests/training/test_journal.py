"""The log of a run: it is written line by line and read back, also after an interruption."""

import json

import pytest

from glassformer.training.journal import LOG, Journal, LogEntry, read_log
from glassformer.training.schedules import Plan
from glassformer.training.started_update import Update
from glassformer.training.state import Evaluation
from glassformer.training.train_config import TrainConfig


@pytest.fixture(autouse=True)
def _no_tensorboard(monkeypatch):
    monkeypatch.setattr("glassformer.training.journal._tensorboard", lambda folder: None)


def update(number, loss):
    return Update(
        position=number, update=number, loss=loss, lr=0.1, gradient_norm=1.0, tokens=10, seconds=2.0, skipped=0
    )


def write_log(folder, *records):
    with Journal(folder, TrainConfig(updates=10)) as journal:
        for record in records:
            (journal.update if isinstance(record, Update) else journal.evaluation)(record)


def test_losses_and_scores_are_read_back_with_their_time(tmp_path, capsys):
    average = Evaluation(2, 2, {"bleu": 6.5}, is_average=True)
    write_log(tmp_path, update(1, 3.0), update(2, 2.5), Evaluation(2, 2, {"bleu": 7.5}), average)
    assert read_log(tmp_path) == [
        LogEntry(1, 2.0, {"training loss": 3.0}),
        LogEntry(2, 4.0, {"training loss": 2.5}),
        LogEntry(2, 4.0, {"validation BLEU": 7.5}),
    ]
    assert "validation after 2 updates:  bleu 7.500" in capsys.readouterr().err


def test_numbers_and_nouns_of_validations_fit(tmp_path, capsys):
    write_log(tmp_path, Evaluation(1, 1, {"bleu": 7.5}), Evaluation(1000, 1000, {"bleu": 8.5}))
    told = capsys.readouterr().err
    assert "validation after 1 update:  bleu 7.500" in told
    assert "validation after 1,000 updates:  bleu 8.500" in told


def test_repeated_updates_appear_once_and_a_cut_off_line_is_skipped(tmp_path):
    write_log(tmp_path, update(1, 3.0), update(2, 2.5))
    with (tmp_path / LOG).open("a", encoding="utf-8") as file:
        file.write('{"kind": "upd\n')
    write_log(tmp_path, update(2, 2.25), update(3, 2.0))
    assert [(entry.update, entry.values["training loss"]) for entry in read_log(tmp_path)] == [
        (1, 3.0),
        (2, 2.25),
        (3, 2.0),
    ]
    assert json.loads((tmp_path / LOG).read_text(encoding="utf-8").splitlines()[0])["tokens"] == 10


@pytest.mark.parametrize("end", ["", "\n"], ids=["cut off", "whole"])
def test_no_record_continues_a_line_that_a_kill_cut_off(end, tmp_path):
    write_log(tmp_path, update(1, 3.0))
    with (tmp_path / LOG).open("a", encoding="utf-8") as file:
        file.write('{"kind": "upd' + end)
    write_log(tmp_path, update(2, 2.5))
    assert [entry.update for entry in read_log(tmp_path)] == [1, 2]


def test_a_folder_without_a_log_has_no_entries(tmp_path):
    assert read_log(tmp_path) == []


def test_only_a_large_change_of_the_plan_is_printed(tmp_path, capsys):
    with Journal(tmp_path, TrainConfig(updates=100)) as journal:
        capsys.readouterr()
        journal.correction(Plan(updates=104, warmup=1), tell_from=0.05)
        assert capsys.readouterr().err == ""
        journal.correction(Plan(updates=50, warmup=1), tell_from=0.05)
        assert capsys.readouterr().err == "50 updates instead of 104: to end in time\n"
        assert journal.updates == 50
