"""Similarity: training, batches of pairs, bad data, generated pairs and the command line."""

import csv
import io
import json
import sys
from dataclasses import replace

import pytest
import torch
import transformers

from glassformer.cli import main
from glassformer.data.batching.labeled_batches import LabeledRow, PairedBatches
from glassformer.data.corpora.synthetic_pairs import generate_pairs
from glassformer.data.readers.records import BadRecordError
from glassformer.pipelines.comparer import Comparer
from glassformer.pipelines.load import load
from glassformer.tasks.configs.shared import Splits
from glassformer.tasks.similarity import Similarity, SimilarityConfig, SimilarityData
from glassformer.tasks.warm_start import load_encoder

WORDS = ["cat", "dog", "cow", "hen", "saw", "axe", "awl", "nail"]


def write_pairs(path, count, seed):
    """Write pairs of two words each. Each position where both texts have an animal, or both a tool, adds 2.5."""
    chance = torch.Generator().manual_seed(seed)
    with path.open("w", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(["text", "second", "score"])
        for a, b, c, d in torch.randint(0, 8, (count, 4), generator=chance).tolist():
            score = 2.5 * ((a < 4) == (c < 4)) + 2.5 * ((b < 4) == (d < 4))
            table.writerow([f"{WORDS[a]} then {WORDS[b]}", f"{WORDS[c]} then {WORDS[d]}", score])


@pytest.fixture
def data(tmp_path):
    write_pairs(tmp_path / "train.csv", 400, 0)
    write_pairs(tmp_path / "valid.csv", 80, 1)
    return SimilarityData(data=(tmp_path / "train.csv",), valid=(tmp_path / "valid.csv",), highest=5.0)


def quick(data, **changes):
    config = SimilarityConfig(data=data)
    train = replace(config.train, updates=100, eval_every=50, save_every=50, warmup=10, max_tokens=512, lr=5e-3)
    model = replace(config.model, vocab_size=300, d_model=32, d_ff=48, dropout=0.0, embedding_dropout=0.0)
    return replace(config, train=train, model=model, **changes)


def test_it_learns_similarity_and_the_loaded_model_scores_the_same(data, tmp_path, capsys):
    task = Similarity(quick(data))
    scores = task.train(tmp_path / "model")
    assert "quartiles of the scores: 0, 0, 2.5, 2.5, 5" in capsys.readouterr().err
    assert scores["spearman"] > 85
    assert scores["spearman"] > task.baseline(data.splits())[1]["spearman"] + 20
    model = load(tmp_path / "model")
    assert isinstance(model, Comparer)
    assert model.score([*data.splits().valid]) == scores
    near, far = "cat then saw\tcow then nail", "cat then saw\taxe then hen"
    answers = model.run([near, "", far])
    assert answers[1] == ""
    assert float(answers[0]) > 3.5 > 1.5 > float(answers[2])
    assert model.similarity("cat then saw", "cow then nail") == pytest.approx(float(answers[0]), abs=1e-3)
    assert model.similarity("cat then saw", "cat then saw") == pytest.approx(5, abs=1e-4)
    vectors = model.embed(["cat", "dog " * 400, "saw"])
    torch.testing.assert_close(vectors.norm(dim=-1), torch.ones(3))
    torch.testing.assert_close(vectors, torch.cat([model.embed([t]) for t in ("cat", "dog " * 400, "saw")]))
    assert model.embed([]).shape == (0, 32)
    with pytest.raises(ValueError, match="'cat' is one text: expected two texts with a tab between them"):
        model.run(["cat"])


def test_training_starts_from_a_checkpoint(data, tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "then", *WORDS]
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48}
    theirs = transformers.BertModel(transformers.BertConfig(vocab_size=len(words), **sizes))
    theirs.save_pretrained(tmp_path / "bert")
    (tmp_path / "bert" / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    body, reader = load_encoder(tmp_path / "bert", "embedding", {"pooling": "mean"})
    assert torch.equal(body.embeddings.tokens.weight, theirs.embeddings.word_embeddings.weight)
    pairs = [*data.splits().valid]
    before = Comparer(body, reader, highest=5.0).score(pairs)
    config = quick(data, start_from=tmp_path / "bert")
    task = Similarity(replace(config, train=replace(config.train, updates=50, lr=2e-3)))
    assert task.train(tmp_path / "model")["spearman"] > before["spearman"] + 10
    assert Comparer.from_folder(tmp_path / "model").reader.kind == "pretrained"


def test_a_batch_holds_both_texts_of_each_pair():
    rows = [
        LabeledRow([10 * pair + side] * (1 + (pair + side) % 5), [0] * (1 + (pair + side) % 5), pair / 20)
        for pair in range(20)
        for side in (0, 1)
    ]
    batches = PairedBatches(rows, pad=999, max_tokens=30, seed=3)
    seen = []
    for step in range(len(batches)):
        batch = batches[step]
        first, second = batch.tokens[:, 0].chunk(2)
        assert torch.equal(first + 1, second)
        torch.testing.assert_close(batch.answers, first / 200)
        assert batch.n_target_tokens == len(first)
        seen += first.tolist()
    assert sorted(seen) == [10 * pair for pair in range(20)]
    assert torch.equal(batches[57].tokens, PairedBatches(rows, pad=999, max_tokens=30, seed=3)[57].tokens)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["a\tb\t0.5", "a\tb\t1.5"], r"data.tsv:3: '1.5' under 'score': expected 0 to 1"),
        (["a\tb\tmuch"], r"data.tsv:2: 'much' under 'score': expected 0 to 1"),
        (["a\tb\tnan"], r"data.tsv:2: 'nan' under 'score'"),
        (["a\t\t0.5"], r"data.tsv:2: empty second"),
        (["a\tb"], r"data.tsv:2: 2 columns, expected 3"),
        (["a\tb\t0.5"] * 9, "all pairs have the score 0.5: expected different ones"),
    ],
)
def test_bad_data_is_refused_with_a_reason(lines, message, tmp_path):
    (tmp_path / "data.tsv").write_text("\n".join(["text\tsecond\tscore", *lines]) + "\n", encoding="utf-8")
    with pytest.raises((BadRecordError, ValueError), match=message):
        Similarity(quick(SimilarityData(data=(tmp_path / "data.tsv",)))).train(tmp_path / "model")


def test_generated_pairs_have_all_scores_and_no_text_is_in_two_splits():
    sides = generate_pairs(2000)
    assert sides == generate_pairs(2000)
    assert {pair.score for pair in sides["train"]} == {0, 0.2, 0.4, 0.6, 0.8, 1}
    held_out = {text for side in ("valid", "test") for pair in sides[side] for text in pair[:2]}
    assert held_out.isdisjoint({text for pair in sides["train"] for text in pair[:2]})
    scores = Similarity(Similarity.demo()).baseline(Splits(*sides.values()))[1]
    assert 20 < scores["spearman"] < 80  # shared words explain a part of the scores


def test_the_command_line_scores_and_runs(data, tmp_path, monkeypatch, capsys):
    config = quick(data)
    Similarity(replace(config, train=replace(config.train, updates=5, warmup=1))).train(tmp_path / "model")
    capsys.readouterr()

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["glassformer", *map(str, arguments)])
        main()
        return capsys.readouterr().out

    # The folder stores that scores go up to 5.
    told = json.loads(call("eval", tmp_path / "model", "--data", data.valid[0], "--json", "--quiet"))
    assert -100 <= told["spearman"] <= 100
    monkeypatch.setattr(sys, "stdin", io.StringIO("cat then saw\tcat then saw\n\n"))
    assert call("run", tmp_path / "model").splitlines() == ["5.000", ""]


def test_a_single_validation_pair_is_refused_before_the_training(data, tmp_path):
    """A correlation needs two, which the first validation noticed, after the updates before it."""
    one = tmp_path / "one.tsv"
    one.write_text("text\tsecond\tscore\na\tb\t1\n", encoding="utf-8")
    message = "1 example is left for validation, and scores need 2: expected files for it"
    with pytest.raises(ValueError, match=message):
        Similarity(quick(replace(data, valid=(one,)))).train(tmp_path / "m")
    assert not (tmp_path / "m").exists()
