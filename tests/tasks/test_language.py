"""Language modeling: training, documents, scores, exact resume and the command line."""

import gzip
import io
import json
import math
import random
import sys
from dataclasses import replace

import pytest
import torch

from glassformer.data.readers.records import BadRecordError
from glassformer.data.readers.text_documents import Document
from glassformer.decoding import GenerationConfig
from glassformer.decoding.scoring import score_long_texts
from glassformer.pipelines.language_model import LanguageModel
from glassformer.pipelines.load import load
from glassformer.tasks.code import Code, CodeConfig, CodeData
from glassformer.tasks.configs.shared import Splits
from glassformer.tasks.language import DocumentData, Language, LanguageConfig
from glassformer.text import TokenizerConfig
from glassformer.text.pretrained_tokenizers import PretrainedTokenizer
from glassformer.training.run_folder import RunFolder
from text.tokenizer_folders import byte_level

RHYME = "one two three four five six seven eight nine ten, "


def quick(data, kind="characters", **changes):
    config = LanguageConfig(data=data, tokenizer=TokenizerConfig(kind=kind, prefix_space=False), context=32)
    train = replace(config.train, updates=80, eval_every=40, save_every=40, warmup=5, max_tokens=512, lr=1e-2)
    model = replace(config.model, vocab_size=300, d_model=32, d_ff=48, n_decoder_layers=2, init_std=0.17)
    return replace(config, train=train, model=model, **changes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("language")


@pytest.fixture(scope="module")
def one_text(folder):
    (folder / "rhyme.txt").write_text(RHYME * 80, encoding="utf-8")
    return DocumentData(data=(folder / "rhyme.txt",))


@pytest.fixture
def documents(tmp_path):
    """Each document repeats one word. Only the beginning of a document shows which one."""
    draw = random.Random(0)
    lines = [json.dumps({"text": " ".join([draw.choice(["cat", "dog", "cow"])] * 6)}) for _ in range(300)]
    (tmp_path / "words.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "held.jsonl").write_text("\n".join(lines[:20]) + "\n", encoding="utf-8")
    return DocumentData(data=(tmp_path / "words.jsonl",), valid=(tmp_path / "held.jsonl",))


@pytest.fixture(scope="module")
def whole_run(one_text, folder):
    return Language(quick(one_text)).train(folder / "model")


@pytest.fixture
def trained(whole_run, folder):
    return load(folder / "model"), whole_run


def test_it_learns_one_text_and_continues_it_beyond_its_context(trained, one_text, folder):
    model, scores = trained
    assert isinstance(model, LanguageModel)
    assert not model.has_documents
    assert list(scores.values) == ["loss", "bits_per_byte", "perplexity"]
    assert scores["loss"] < 0.25
    assert scores["perplexity"] == pytest.approx(math.exp(scores["loss"]))
    assert scores["bits_per_byte"] == pytest.approx(scores["loss"] / math.log(2))  # a character is a byte here
    assert model.score([*one_text.splits().valid]).values == pytest.approx(scores.values)
    # Much longer than its context.
    model.generation = GenerationConfig(max_new_tokens=150)
    ask = RHYME[-22:] + "one two th"  # fills the context
    assert model.run([ask, ""]) == [(RHYME * 4)[len("one two th") :][:150], ""]
    assert "".join(model.stream(ask)) == model.run([ask])[0]
    assert "loss" in (folder / "model" / "README.md").read_text(encoding="utf-8")


def test_streamed_and_whole_texts_are_equal_even_when_sampled(trained):
    model, _ = trained
    for config in (
        GenerationConfig(max_new_tokens=90, do_sample=True, temperature=1.5, seed=3),
        GenerationConfig(max_new_tokens=90, stop_strings=("six", "nine ten, one")),
        GenerationConfig(max_new_tokens=70, min_new_tokens=70),
    ):
        texts = ["one two", RHYME[:32], "nine"]
        assert ["".join(model.stream(text, config)) for text in texts] == model.run(texts, config=config)
    assert model.generate("five", max_new_tokens=4) == " six"
    assert model.generate("", max_new_tokens=3)  # from nothing


def test_a_model_with_experts_learns_and_says_how_evenly_they_are_chosen(one_text, tmp_path, capsys):
    config = quick(one_text)
    model = replace(config.model, n_experts=4, expert_d_ff=24)
    train = replace(config.train, updates=60, eval_every=30, save_every=30, gradient_checkpointing=True)
    scores = Language(replace(config, model=model, train=train)).train(tmp_path / "model")
    said = capsys.readouterr().err
    assert said.count("experts: the busiest of 4 is chosen for") >= 2
    assert "2 of 4 experts" in (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    assert scores["loss"] < 0.8
    found = load(tmp_path / "model")
    assert found.model.config.n_experts == 4
    assert len(found.generate("five", max_new_tokens=3)) == 3


def test_documents_are_separated_and_generation_ends(documents, tmp_path):
    scores = Language(quick(documents, "bpe")).train(tmp_path / "model")
    assert next(iter(scores.values)) == "bits_per_byte"
    # The first word of a document is one of three, which costs log2(3) bits per 23 bytes. The rest is predictable.
    assert math.log2(3) / 24 < scores["bits_per_byte"] < 0.2
    model = load(tmp_path / "model")
    assert model.has_documents
    assert model.run(["cat cat", "dog"]) == [" cat" * 4, " dog" * 5]


def test_sliding_windows_predict_each_token_once_with_enough_context(trained):
    model, _ = trained
    tokens = [model.tokenizer.encode(RHYME * 2), model.tokenizer.encode("one two"), model.tokenizer.encode("on")]
    texts = [*tokens, tokens[0][:33], tokens[0][:34]]
    context = model.context
    for stride in (7, context // 2, context):
        found = score_long_texts(model.model, texts, context=context, stride=stride, batch_tokens=100)
        for text, total in zip(texts, found, strict=True):
            expected = 0.0
            for place in range(1, len(text)):
                # The first window that ends at this token or after it predicts it.
                end = min(context + -(-max(place - context, 0) // stride) * stride, len(text) - 1)
                begin = max(0, end - context)
                assert place - begin >= min(place, context - stride + 1)
                with torch.no_grad():
                    log_probs = model.model(torch.tensor([text[begin:place]]))[0, -1].log_softmax(-1)
                expected += log_probs[text[place]].item()
            assert total == pytest.approx(expected, abs=1e-3)
    with pytest.raises(ValueError, match="stride=40: expected 1 to context=32"):
        score_long_texts(model.model, texts, context=32, stride=40)


def test_the_compressor_reads_lower_case_where_the_model_does(one_text):
    config = quick(one_text)
    lower = replace(config, tokenizer=replace(config.tokenizer, lowercase=True))
    splits = Splits([Document("Some Text " * 9)], [Document("OTHER Text " * 9)])
    lowered = Splits(*([Document(one.text.lower()) for one in side] for side in splits))
    assert Language(lower).baseline(splits)[1].values == Language(config).baseline(lowered)[1].values


def test_unknown_characters_are_reported_with_the_score(trained):
    model, _ = trained
    assert model.score([Document("one two")]).signatures == {}
    assert "2 unknown characters" in model.score([Document("one ZZ two")]).signatures["loss"]


def test_an_interrupted_run_ends_with_the_same_weights(trained, one_text, tmp_path, monkeypatch):
    from glassformer.training.trainer import Trainer

    stops, plain = [17, 55], Trainer._update

    def update(self):
        if stops and self.state.position == stops[0]:
            stops.pop(0)
            self.save()
            raise KeyboardInterrupt
        plain(self)

    monkeypatch.setattr(Trainer, "_update", update)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            Language(quick(one_text)).train(tmp_path / "parts")
    Language(quick(one_text)).train(tmp_path / "parts")
    one, two = trained[0].model, load(tmp_path / "parts").model
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def test_bad_input_is_refused_with_a_reason(tmp_path):
    (tmp_path / "bad.txt").write_bytes(b"one\ntwo \xff\n")
    (tmp_path / "bad.jsonl").write_text('{"text": "one"}\n{"words": "two"}\n', encoding="utf-8")
    (tmp_path / "short.txt").write_text("a", encoding="utf-8")
    for number, (name, error, message) in enumerate(
        (
            ("bad.txt", BadRecordError, r"bad.txt:2: not valid UTF-8"),
            ("bad.jsonl", BadRecordError, r"bad.jsonl:2: no text under 'text'"),
            ("none.txt", FileNotFoundError, "none.txt: no such file"),
            ("short.txt", ValueError, "no text is left|has 0 tokens|expected"),
        )
    ):
        with pytest.raises(error, match=message):
            Language(quick(DocumentData(data=(tmp_path / name,)))).train(tmp_path / f"model{number}")
    with pytest.raises(ValueError, match="no data: expected at least one text file"):
        Language(quick(DocumentData())).train(tmp_path / "model")
    with pytest.raises(ValueError, match="unknown corpus 'x': expected standard-library"):
        DocumentData(corpus="x").splits()
    with pytest.raises(ValueError, match="bpe_dropout"):
        LanguageConfig(tokenizer=TokenizerConfig(bpe_dropout=0.1))


def test_a_compressor_is_the_baseline(one_text):
    how, scores = Language(quick(one_text)).baseline(one_text.splits())
    assert "xz" in how
    assert 0 <= scores["bits_per_byte_after_training_text"] < scores["bits_per_byte"] < 8


def test_the_demo_is_a_small_recipe(monkeypatch):
    from glassformer.data.corpora import standard_library

    names = standard_library.source_files()
    assert len(names) > 200
    assert not [name for name in names if "test" in name.parts]
    monkeypatch.setattr(standard_library, "source_files", lambda: names[:60])
    config = Language.demo()
    assert config.train.minutes <= 2.5
    sides = config.data.splits()
    assert len(list(sides.train)) > len(list(sides.valid)) > 0


def test_the_command_line_trains_scores_and_writes(tmp_path, monkeypatch, capsys):
    from glassformer.cli import main

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["glassformer", *map(str, arguments)])
        main()
        return capsys.readouterr().out

    with gzip.open(tmp_path / "rhyme.txt.gz", "wt") as file:
        file.write(RHYME * 60)
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        "context = 32\n[tokenizer]\nkind = 'characters'\n[data]\nvalid_share = 0.1\n"
        "[model]\nd_model = 32\nd_ff = 48\nn_decoder_layers = 1\n"
        "[train]\nupdates = 60\nwarmup = 5\nlr = 1e-2\nmax_tokens = 512\n",
        encoding="utf-8",
    )
    text, out = tmp_path / "rhyme.txt.gz", tmp_path / "m"
    assert "loss" in call("train", "language", "--recipe", recipe, "--data", text, "--out", out)
    assert json.loads(call("eval", out, "--data", text, "--json", "--quiet"))["loss"] < 1.5
    assert len(call("run", out, "--prompt", "one two", "--max-new-tokens", "60")) == 61
    monkeypatch.setattr(sys, "stdin", io.StringIO("one two\n\n"))
    lines = call("run", out, "--max-new-tokens", "5").splitlines()
    assert [len(line) for line in lines] == [5, 0]


def test_training_starts_from_a_trained_model(whole_run, folder, one_text, tmp_path):
    task = Language(quick(one_text, start_from=folder / "model"))
    (tmp_path / "run").mkdir()
    begun = task.prepare(RunFolder(tmp_path / "run")).pipeline.model
    trained = load(folder / "model").model
    assert all(torch.equal(a, b) for a, b in zip(begun.parameters(), trained.parameters(), strict=True))
    with pytest.raises(ValueError, match="the tokenizer has no special token <before>"):
        Code(CodeConfig(data=CodeData(data=one_text.data), start_from=folder / "model")).prepare(
            RunFolder(tmp_path / "run")
        )


def test_word_dropout_changes_the_inputs_and_not_the_targets(one_text, tmp_path):
    task = Language(quick(one_text))
    prepared = task.prepare(RunFolder(tmp_path))
    batch = prepared.batches[0]
    read = []

    class Model(torch.nn.Module):
        def forward(self, tokens, segments):
            read.append(tokens)
            return torch.zeros(*tokens.shape, 300)

    model = Model()
    task.loss(model, batch)
    hiding = Language(replace(task.config, train=replace(task.config.train, word_dropout=0.5)))
    hiding.loss(model, batch)
    assert torch.equal(read[0], batch.tokens)
    assert 0.3 < (read[1] != batch.tokens).float().mean() < 0.7
    assert "word_dropout" in Code(CodeConfig(data=CodeData(data=one_text.data))).unused()  # whose marks must stay


def test_a_model_is_trained_from_scratch_with_another_tokenizer(one_text, tmp_path):
    byte_level(special=["<|endoftext|>"]).save(str(tmp_path / "tokenizer.json"))
    config = quick(one_text)
    config = replace(
        config,
        tokenizer=TokenizerConfig(tokenizer_file=str(tmp_path / "tokenizer.json")),
        train=replace(config.train, updates=2, eval_every=2, save_every=2),
    )
    Language(config).train(tmp_path / "model")
    model = load(tmp_path / "model")
    before = PretrainedTokenizer.from_folder(tmp_path)
    text = "seven eight nine"
    assert model.tokenizer.tokens(model.tokenizer.encode(text)) == before.tokens(before.encode_plain(text))
    assert model.model.config.vocab_size == before.vocab_size + 3  # four special tokens instead of one
