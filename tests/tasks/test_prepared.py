"""The inputs of a run: the stored tokenizer, and the note about bad records."""

from collections import Counter

from glassformer.tasks.classification import ClassificationConfig
from glassformer.tasks.prepared import skipped_note, stored_tokenizer
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
