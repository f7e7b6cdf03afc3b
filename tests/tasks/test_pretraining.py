"""Masking and denoising: plain texts, token rows, exact resume, demos and the command line."""

import gzip
import io
import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from glassformer.data.batching.text_rows import InMemoryRows, write_text_rows
from glassformer.data.corpora.docstrings import Docstring
from glassformer.data.readers.plain_texts import PlainText, TextReader
from glassformer.data.readers.records import BadRecordError
from glassformer.metrics.token_accuracy import score_unigram_baseline
from glassformer.pipelines.load import load
from glassformer.tasks.denoising import Denoising, DenoisingConfig
from glassformer.tasks.masking import Masking, MaskingConfig
from glassformer.tasks.pretraining import TextData
from glassformer.text import TokenizerConfig
from glassformer.training.trainer import Trainer
from tasks.pretraining_models import labeled, quick


def stopped(task, folder, stops):
    """Train with interruptions at these updates, each followed by a resume."""
    plain = Trainer._update

    def update(self):
        if stops and self.state.position == stops[0]:
            stops.pop(0)
            self.save()
            raise KeyboardInterrupt
        plain(self)

    Trainer._update = update
    try:
        while stops:
            with pytest.raises(KeyboardInterrupt):
                task().train(folder)
        task().train(folder)
    finally:
        Trainer._update = plain


@pytest.mark.parametrize("kind", ["masking", "denoising"])
def test_an_interrupted_run_ends_with_the_same_weights(kind, corpus, tmp_path):
    def task():
        config = MaskingConfig(data=corpus) if kind == "masking" else DenoisingConfig(data=corpus)
        config = replace(quick(config, updates=8), model=replace(quick(config).model, dropout=0.1))
        return Masking(config) if kind == "masking" else Denoising(config)

    task().train(tmp_path / "whole")
    stopped(task, tmp_path / "parts", [3, 5])
    one, two = (load(tmp_path / name).model for name in ("whole", "parts"))
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(a, b)


def test_texts_are_read_from_lines_and_records_and_bad_ones_are_named(tmp_path):
    with gzip.open(tmp_path / "a.txt.gz", "wb") as stream:
        stream.write(b"one\n\n  two \n")
    (tmp_path / "b.jsonl").write_text('{"body": "three"}\n{"body": 4}\n', encoding="utf-8")
    reader = TextReader([tmp_path / "a.txt.gz"])
    assert [*reader] == [PlainText("one", f"{tmp_path}/a.txt.gz:1"), PlainText("two", f"{tmp_path}/a.txt.gz:3")]
    with pytest.raises(BadRecordError, match=r"b.jsonl:2: no text under 'body'"):
        list(TextReader([tmp_path / "b.jsonl"], "body"))
    skipping = TextReader([tmp_path / "b.jsonl"], "body", "skip")
    assert [text.text for text in skipping] == ["three"]
    assert skipping.skipped.total() == 1
    (tmp_path / "c.txt").write_bytes(b"fine\n\xff\n")
    with pytest.raises(BadRecordError, match=r"c.txt:2: not valid UTF-8"):
        Masking(quick(MaskingConfig(data=TextData(data=(tmp_path / "c.txt",))))).train(tmp_path / "model")
    with pytest.raises(ValueError, match=r"share=1\.0: expected more than 0 and less than 1"):
        MaskingConfig(share=1)
    with pytest.raises(ValueError, match=r"bpe_dropout=0.1: expected 0"):
        DenoisingConfig(tokenizer=TokenizerConfig(bpe_dropout=0.1))


def test_rows_on_disk_and_in_memory_are_the_same(tmp_path):
    def encode(texts):
        return [[ord(letter) for letter in text] for text in texts]

    texts = ["abc", "", "abcdefgh", "z"]
    held = InMemoryRows(texts, encode, longest=3)
    for rows in (held, write_text_rows(tmp_path / "rows", texts, encode, longest=3)):
        found = ["".join(map(chr, rows[index])) for index in range(len(rows))]
        assert found == ["abc", "abc", "def", "gh", "z"]
        assert rows.lengths.tolist() == [3, 3, 3, 2, 1]


def test_the_score_of_the_most_frequent_token_is_computed_by_hand():
    seen, true = [np.array([1, 1, 2])], [np.array([1, 0]), np.array([2, 1])]
    scores = score_unigram_baseline(seen, true, 3)
    assert scores["accuracy"] == 50
    shares = np.array([1, 3, 2]) / 6
    assert scores["loss"] == pytest.approx(-np.log(shares[[1, 0, 2, 1]]).mean())


def test_both_tasks_have_a_short_demo(monkeypatch):
    found = [Docstring(f"Number {n} is what it is, and no other.", f"Tell number {n}.") for n in range(2000)]
    monkeypatch.setattr("glassformer.tasks.pretraining.docstrings", lambda: found)
    for task in (Masking, Denoising):
        config = task.demo()
        assert config.train.minutes <= 3
        splits = config.data.splits()
        assert len(list(splits.test)) > 50
        line, right = task(config).show(next(iter(splits.test)))
        assert line.count("___") == 1
        assert "___" not in right


def test_the_command_line_trains_runs_embeds_and_starts_from_it(corpus, tmp_path, monkeypatch, capsys):
    from glassformer.cli import main

    def call(*arguments, stdin=""):
        monkeypatch.setattr(sys, "argv", ["glassformer", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        main()
        return capsys.readouterr().out

    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        "share = 0.2\n[model]\nvocab_size = 300\nd_model = 16\nd_ff = 16\nn_heads = 2\nn_encoder_layers = 1\n"
        "[train]\nupdates = 3\n",
        encoding="utf-8",
    )
    flags = ["--data", corpus.data[0], "--valid", corpus.valid[0], "--out", tmp_path / "m"]
    assert "accuracy" in call("train", "masking", "--recipe", recipe, *flags)
    assert json.loads(call("eval", tmp_path / "m", "--data", corpus.valid[0], "--json", "--quiet"))["loss"] > 0
    lines = call("run", tmp_path / "m", stdin="the ___ dog\nas it is\n").splitlines()
    assert lines[1] == "as it is"
    vectors = call("run", tmp_path / "m", "--embed", stdin="the dog\n\n").splitlines()
    assert len(json.loads(vectors[0])) == 16
    assert vectors[1] == ""
    file = labeled(tmp_path, 40, 0)
    flags = ["--data", file, "--valid", file, "--updates", 2, "--lora-rank", 2, "--out", tmp_path / "c"]
    assert "accuracy" in call("train", "classification", "--from", tmp_path / "m", *flags)
    assert json.loads((tmp_path / "c.run" / "run.json").read_text(encoding="utf-8"))["config"]["start_from"] == str(
        tmp_path / "m"
    )
