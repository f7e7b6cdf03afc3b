"""The inputs of a run: the stored tokenizer, and the note about bad records."""

from collections import Counter

import pytest

from glassformer.tasks.classification import ClassificationConfig
from glassformer.tasks.prepared import check_texts, skipped_note, stored_tokenizer
from glassformer.tasks.pretraining import TextData
from glassformer.tasks.task_registry import task_named
from glassformer.text import Tokenizer
from glassformer.training.run_folder import open_run
from glassformer.training.schedules import Plan


def test_a_tokenizer_is_trained_once_and_stored_only_with_a_run(tmp_path):
    calls = []

    def train():
        calls.append(1)
        return Tokenizer.train(["one two"], 270)

    alone = stored_tokenizer(None, train)
    assert len(calls) == 1
    with open_run(tmp_path / "m") as run:
        run.bind("classification", ClassificationConfig(), {})
        assert stored_tokenizer(run, train).to_json() == alone.to_json()
        run.begin(Plan(updates=2, warmup=1), 0)
    with open_run(tmp_path / "m") as run:
        run.bind("classification", ClassificationConfig(), {})
        assert stored_tokenizer(run, train).to_json() == alone.to_json()
    assert len(calls) == 2, "a resumed run reads its tokenizer"


def test_the_note_counts_bad_records_by_reason():
    assert skipped_note(Counter()) == []
    assert skipped_note(Counter({"empty text": 1200, "no label": 3})) == [
        "skipped 1,203 bad records: 1,200 with empty text, 3 with no label"
    ]


@pytest.mark.parametrize("task", ["language", "masking", "denoising", "code"])
def test_files_without_text_are_named(task, tmp_path):
    for name, text in (("empty.txt", ""), ("blank.txt", "\n \n\n"), ("good.txt", "one two\nthree four\n" * 30)):
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.py").write_text("", encoding="utf-8")
    kind = task_named(task)
    cases = [
        (("empty.txt",), (), r"^\S*empty\.txt is empty: expected text$"),
        (("blank.txt",), (), r"^\S*blank\.txt has no text: expected text$"),
        (("empty.txt", "empty.txt"), (), r"^\S*empty\.txt, \S*empty\.txt are empty: expected text$"),
        (("empty.txt", "blank.txt"), (), r"^\S*empty\.txt, \S*blank\.txt have no text: expected text$"),
        (("empty.txt",), ("good.txt",), r"^\S*empty\.txt is empty: expected text$"),
        (("good.txt",), ("empty.txt",), r"^\S*empty\.txt is empty: expected text$"),
    ]
    if task == "code":
        cases.append((("folder",), (), r"folder has no text: expected text"))
    for number, (data, valid, message) in enumerate(cases):
        files = kind.data_class()(
            data=tuple(tmp_path / name for name in data), valid=tuple(tmp_path / name for name in valid)
        )
        with pytest.raises(ValueError, match=message):
            kind(kind.Config(data=files)).train(tmp_path / f"model{number}")
        if "good.txt" not in data:
            with pytest.raises(ValueError, match=message):
                kind(kind.Config(data=files)).corpus()  # as the command line does, before it chooses options


def test_files_whose_bad_records_were_skipped_are_not_called_empty(tmp_path):
    (tmp_path / "bad.txt").write_bytes(b"one \xff\n")
    data = TextData(data=(tmp_path / "bad.txt",), on_bad="skip")
    splits = data.splits()
    with pytest.raises(ValueError, match="no text is left to learn from: expected more data"):
        check_texts(data, splits.train, list(splits.valid))
