"""Texts alone to models that other tasks begin with: what is learned, kept, taken over and said."""

import gzip
import io
import json
import random
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers

from glassformer.checkpoint import load_model
from glassformer.data.batching.text_rows import HeldRows, write_text_rows
from glassformer.data.corpora.docstrings import Docstring
from glassformer.data.readers.plain_texts import PlainText, TextReader
from glassformer.data.readers.records import BadRecordError
from glassformer.metrics.token_accuracy import score_commonest
from glassformer.pipelines.denoiser import Denoiser
from glassformer.pipelines.load import load
from glassformer.pipelines.mask_filler import MaskFiller, frame_of, mask_of
from glassformer.tasks.classification import Classification, ClassificationConfig, LabeledData
from glassformer.tasks.denoising import Denoising, DenoisingConfig
from glassformer.tasks.masking import Masking, MaskingConfig
from glassformer.tasks.pretraining import TextData
from glassformer.tasks.translation import PairData, Translation, TranslationConfig
from glassformer.tasks.warm_start import load_encoder, load_seq2seq
from glassformer.text import TokenizerConfig
from glassformer.training.trainer import Trainer

KINDS = {"cow": "moos", "dog": "barks", "hen": "clucks", "cat": "purrs"}


def sentence(draw):
    animal = draw.choice([*KINDS])
    return f"the {draw.choice(['old', 'red', 'big'])} {animal} {KINDS[animal]} ."


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder, draw = tmp_path_factory.mktemp("texts"), random.Random(0)
    for name, count in (("train.txt", 400), ("valid.txt", 40)):
        texts = [" ".join(sentence(draw) for _ in range(draw.randint(1, 2))) for _ in range(count)]
        (folder / name).write_text("\n".join(texts) + "\n", encoding="utf-8")
    return TextData(data=(folder / "train.txt",), valid=(folder / "valid.txt",))


def quick(config, updates=100, **changes):
    train = replace(
        config.train, updates=updates, eval_every=50, save_every=50, warmup=10, max_tokens=512, lr=5e-3, device="cpu"
    )
    sizes = {"vocab_size": 310, "d_model": 32, "d_ff": 48, "n_heads": 4, "max_len": 32, "dropout": 0.0}
    depth = {"n_encoder_layers": 1, "n_decoder_layers": min(config.model.n_decoder_layers, 1)}
    return replace(config, train=train, model=replace(config.model, embedding_dropout=0.0, **sizes, **depth), **changes)


@pytest.fixture(scope="module")
def masked(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("masked") / "model"
    return folder, Masking(quick(MaskingConfig(data=data, share=0.3), updates=150)).train(folder)


@pytest.fixture(scope="module", params=["spans", "infilling"])
def denoised(request, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param) / "model"
    return folder, Denoising(quick(DenoisingConfig(data=data, noise=request.param), updates=60)).train(folder)


def test_masking_learns_words_by_their_neighbours_and_remembers(masked, data):
    folder, scores = masked
    task = Masking(quick(MaskingConfig(data=data, share=0.3)))
    how, guessed = task.baseline(data.splits())
    assert how == "the most frequent token"
    assert scores["loss"] < 0.6 * guessed["loss"]
    assert scores["accuracy"] > guessed["accuracy"] + 20
    tool = load(folder)
    assert isinstance(tool, MaskFiller)
    assert tool.score([*data.splits().valid]) == scores
    lines = ["the old dog ___ .", "", "no blank", "the red ___ moos . the big hen ___."]
    assert tool.run(lines) == ["the old dog barks .", "", "no blank", "the red cow moos . the big hen clucks."]
    vectors = tool.embed(["the old dog barks .", "the big dog barks .", "the red cow moos . the red cow moos ."])
    torch.testing.assert_close(vectors.norm(dim=-1), torch.ones(3))
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2]


def test_denoising_learns_and_fills_in(denoised, data):
    folder, scores = denoised
    tool = load(folder)
    assert isinstance(tool, Denoiser)
    assert tool.score([*data.splits().valid]) == scores
    _, guessed = Denoising(quick(DenoisingConfig(data=data, noise=tool.noise))).baseline(data.splits())
    assert scores["loss"] < 0.6 * guessed["loss"]
    told = tool.run(["the red cow moos . the old dog ___ .", "", "no blank"], beam=1)
    assert told[1:] == ["", "no blank"]
    if tool.noise == "spans":
        assert told[0].startswith("the red cow moos . the old dog ")
    assert "_" not in told[0]


def stopped(task, folder, stops):
    """Train, stopped and called again at these updates."""
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
def test_a_run_that_was_stopped_ends_the_same(kind, data, tmp_path):
    def task():
        config = MaskingConfig(data=data) if kind == "masking" else DenoisingConfig(data=data)
        config = replace(quick(config, updates=8), model=replace(quick(config).model, dropout=0.1))
        return Masking(config) if kind == "masking" else Denoising(config)

    task().train(tmp_path / "whole")
    stopped(task, tmp_path / "parts", [3, 5])
    one, two = (load(tmp_path / name).model for name in ("whole", "parts"))
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(a, b)


def test_what_is_hidden_is_a_function_of_the_epoch_and_the_row(masked, data):
    tool = load(masked[0])
    rows = HeldRows([example.text for example in data.examples()], tool.encode, longest=tool.longest)
    batches = tool.batches(rows, max_tokens=256, seed=3)
    again = tool.batches(rows, max_tokens=256, seed=3)
    for step in (5, 0, len(batches) + 2):
        assert all(torch.equal(a, b) for a, b in zip(batches[step], again[step], strict=True))

    def hidden(batch):
        return {tuple(row) for row in batch.tokens.masked_fill(~batch.mask, 0).tolist()}

    epochs = [set().union(*(hidden(batches[e * len(batches) + s]) for s in range(len(batches)))) for e in (0, 1)]
    assert len(epochs[0] & epochs[1]) < len(epochs[0]) / 2
    batch = batches[0]
    end = {2}  # nothing special is ever asked for
    asked = batch.answers[batch.answers >= 0].tolist()
    assert not set(asked) & (tool.reader.tokenizer.special_ids | end)


def labeled(folder, count, seed):
    draw = random.Random(seed)
    path = folder / f"labeled-{count}.tsv"
    lines = ["text\tlabel"]
    for _ in range(count):
        animal = draw.choice([*KINDS])
        # The class is that of the animal, named by its noise alone: only who has read the texts knows it.
        lines.append(f"the {draw.choice(['old', 'red', 'big'])} one {KINDS[animal]} .\t{animal}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_a_body_that_masking_made_is_taken_over_bit_by_bit(masked, tmp_path):
    body = load_model(masked[0])
    model, reader = load_encoder(masked[0], "token_class", {"n_labels": 3})
    own = dict(body.named_parameters())
    for name, parameter in model.named_parameters():
        assert name.startswith("head.") or torch.equal(parameter, own[name])
    assert reader.files["tokenizer.json"] == (masked[0] / "tokenizer.json").read_text(encoding="utf-8")
    files = labeled(tmp_path, 120, 1), labeled(tmp_path, 40, 2)
    config = ClassificationConfig(data=LabeledData(data=files[:1], valid=files[1:]), start_from=masked[0])
    config = quick(config, updates=30)
    scores = Classification(config).train(tmp_path / "all")
    assert scores["accuracy"] > 90
    # With adapters all but their matrices, and the head, is still the checkpoint's to the bit.
    layers = ("v_proj", "out_proj", "up_proj", "down_proj")
    adapted = replace(config, train=replace(config.train, lora_rank=8, lora_layers=layers, lr=0.03, updates=40))
    assert Classification(adapted).train(tmp_path / "adapted")["accuracy"] > 90
    plain = load(tmp_path / "adapted").model
    moved = {name for name, p in plain.named_parameters() if name not in own or not torch.equal(p, own[name])}
    parts = ("self_attn.v_proj", "self_attn.out_proj", "ffn.up_proj", "ffn.down_proj")
    assert {name for name in moved if name.startswith("head.")} == {"head.out_proj.weight", "head.out_proj.bias"}
    assert {name for name in moved if not name.startswith("head.")} == {
        f"encoder.layers.0.{part}.weight" for part in parts
    }
    with pytest.raises(ValueError, match="lora_rank=8 without a model to adapt"):
        Classification(replace(adapted, start_from=None)).train(tmp_path / "none")


def test_a_translator_begins_with_what_denoising_made(denoised, data, tmp_path):
    folder = denoised[0]
    model, source, target = load_seq2seq(folder)
    assert source is target
    for name, parameter in load_model(folder).named_parameters():
        assert torch.equal(parameter, dict(model.named_parameters())[name])
    texts = data.data[0].read_text(encoding="utf-8").splitlines()[:60]
    (tmp_path / "a.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    (tmp_path / "b.txt").write_text("\n".join(" ".join(text.split()[::-1]) for text in texts) + "\n", encoding="utf-8")
    files = PairData(
        source=(tmp_path / "a.txt",),
        target=(tmp_path / "b.txt",),
        valid_source=(tmp_path / "a.txt",),
        valid_target=(tmp_path / "b.txt",),
    )
    config = quick(TranslationConfig(data=files, start_from=folder), updates=3)
    Translation(config).train(tmp_path / "translator")
    tool = load(tmp_path / "translator")
    assert tool.source_tokenizer.to_json() == source.to_json()
    assert tool.model.config == model.config
    assert len(tool.run(["the old dog barks ."])) == 1


def test_a_wrong_beginning_is_explained(masked, denoised, data, tmp_path):
    pairs = PairData(source=data.data, target=data.data, valid_source=data.valid, valid_target=data.valid)
    with pytest.raises(ValueError, match="is of kind 'encoder': expected 'encoder_decoder'"):
        Translation(quick(TranslationConfig(data=pairs, start_from=masked[0]))).train(tmp_path / "a")
    with pytest.raises(ValueError, match="is of kind 'encoder_decoder': expected 'encoder'"):
        Masking(quick(MaskingConfig(data=data, start_from=denoised[0]))).train(tmp_path / "b")
    with pytest.raises(FileNotFoundError, match=r"--from .*nowhere: no such folder"):
        Masking(quick(MaskingConfig(data=data, start_from=tmp_path / "nowhere"))).train(tmp_path / "c")
    other = {"spans": "infilling", "infilling": "spans"}[load(denoised[0]).noise]
    with pytest.raises(ValueError, match="expected a model that `glassformer train denoising` wrote"):
        Denoising(quick(DenoisingConfig(data=data, start_from=denoised[0], noise=other))).train(tmp_path / "d")
    sizes = {"vocab_size": 30, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "max_position_embeddings": 32}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    theirs = transformers.BartForConditionalGeneration(transformers.BartConfig(**sizes, **heads))
    theirs.save_pretrained(tmp_path / "bart")
    with pytest.raises(ValueError, match="was not trained by Glassformer, and its tokenizer cannot be used"):
        Translation(quick(TranslationConfig(data=pairs, start_from=tmp_path / "bart"))).train(tmp_path / "e")


def test_somebodys_bert_goes_on_with_its_own_head_and_mask(data, tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "old", "red", "big", ".", *KINDS, *KINDS.values()]
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48}
    torch.manual_seed(0)
    theirs = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=len(words), **sizes))
    theirs.save_pretrained(tmp_path / "bert")
    (tmp_path / "bert" / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    task = Masking(quick(MaskingConfig(data=data, start_from=tmp_path / "bert"), updates=40))
    tool, fresh = task.initialize(())
    assert not fresh
    assert torch.equal(tool.model.head.transform.dense.weight, theirs.cls.predictions.transform.dense.weight)
    assert mask_of(tool.reader) == 4
    assert (list(frame_of(tool.reader).before), list(frame_of(tool.reader).after)) == ([2], [3])
    assert task.train(tmp_path / "model")["accuracy"] > 30
    assert load(tmp_path / "model").run(["the old dog ___ ."])[0].startswith("the old dog ")


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
    held = HeldRows(texts, encode, longest=3)
    for rows in (held, write_text_rows(tmp_path / "rows", texts, encode, longest=3)):
        found = ["".join(map(chr, rows[index])) for index in range(len(rows))]
        assert found == ["abc", "abc", "def", "gh", "z"]
        assert rows.lengths.tolist() == [3, 3, 3, 2, 1]


def test_the_commonest_token_scores_what_it_says():
    seen, true = [np.array([1, 1, 2])], [np.array([1, 0]), np.array([2, 1])]
    scores = score_commonest(seen, true, 3)
    assert scores["accuracy"] == 50
    shares = np.array([1, 3, 2]) / 6
    assert scores["loss"] == pytest.approx(-np.log(shares[[1, 0, 2, 1]]).mean())


def test_demos_are_there(monkeypatch):
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


def test_the_command_line_trains_runs_embeds_and_begins_with_it(data, tmp_path, monkeypatch, capsys):
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
    flags = ["--data", data.data[0], "--valid", data.valid[0], "--out", tmp_path / "m"]
    assert "accuracy" in call("train", "masking", "--recipe", recipe, *flags)
    assert json.loads(call("eval", tmp_path / "m", "--data", data.valid[0], "--json", "--quiet"))["loss"] > 0
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
