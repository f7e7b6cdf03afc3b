"""Tagging: training, long sentences, data augmentation, data files and the command line."""

import gzip
import io
import json
import random
import sys
from dataclasses import replace

import pytest
import torch
import transformers

from glassformer.data.batching.labeled_batches import IGNORED
from glassformer.data.corpora.synthetic_sentences import generate_sentences
from glassformer.data.readers.records import BadRecordError
from glassformer.data.readers.tagged_sentences import TaggedReader, TaggedSentence
from glassformer.pipelines.load import load
from glassformer.pipelines.tagger import Tagger
from glassformer.tasks.tagging import TaggedData, Tagging, TaggingConfig
from glassformer.text import TokenizerConfig
from glassformer.text.tags import Entity, tags_of
from glassformer.training.run_folder import RunFolder

TOWNS, FOLK = ["Rome", "Oslo", "Bern", "Lima"], ["Ann", "Bob", "Eva", "Max"]


def sentences(count, seed=0, longest=2):
    draw = random.Random(seed)
    for _ in range(count):
        words, entities = [], []
        for _ in range(draw.randint(1, 4)):
            words += draw.choices(["the", "old", "cat", "sees"], k=draw.randint(1, 3))
            kind, names = draw.choice([("PLACE", TOWNS), ("PERSON", FOLK)])
            name = draw.choices(names, k=draw.randint(1, longest))
            entities.append(Entity(len(words), len(words) + len(name), kind))
            words += name
        yield TaggedSentence(tuple(words), tuple(entities))


def write(path, examples, scheme="iob1"):
    text = "-DOCSTART- -X- O\n\n"
    for words, entities, _ in examples:
        tags = tags_of(entities, len(words), scheme)
        text += "".join(f"{word} NN {tag}\n" for word, tag in zip(words, tags, strict=True)) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.fixture
def data(tmp_path):
    train = write(tmp_path / "train.conll.gz", sentences(300), "iob1")
    return TaggedData(data=(train,), valid=(write(tmp_path / "valid.txt", sentences(60, 1), "bioes"),))


def quick(data, **changes):
    config = TaggingConfig(data=data)
    train = replace(config.train, updates=100, eval_every=100, save_every=100, warmup=10, max_tokens=512, lr=8e-3)
    train = replace(train, word_dropout=0.0, label_smoothing=0.0)
    model = replace(config.model, vocab_size=330, d_model=32, d_ff=48, dropout=0.1, embedding_dropout=0.0, max_len=32)
    return replace(config, train=train, model=model, **changes)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a trained tagger, and its scores."""
    folder = tmp_path_factory.mktemp("tagger")
    train = write(folder / "train.conll", sentences(300))
    valid = write(folder / "valid.conll", sentences(60, 1))
    return folder / "model", Tagging(quick(TaggedData(data=(train,), valid=(valid,)))).train(folder / "model")


def test_it_learns_and_the_loaded_model_scores_the_same(trained):
    folder, scores = trained
    assert scores["f1"] > 95
    assert list(scores.values) == ["f1", "precision", "recall", "f1_PERSON", "f1_PLACE"]
    tool = load(folder)
    assert isinstance(tool, Tagger)
    assert tool.run(["the cat,  Ann, sees the Rome.", ""]) == ["the cat,  [Ann PERSON], sees the [Rome PLACE].", ""]
    assert tool.tag([["old", "Eva", "Bob", "sees"], []]) == [[Entity(1, 3, "PERSON")], []]
    assert tool.score(list(sentences(60, 1))) == scores
    assert "F1" in (folder / "README.md").read_text(encoding="utf-8")


def test_every_word_of_a_long_sentence_is_scored(trained):
    tool = load(trained[0])
    (one,) = [example for example in sentences(50, 4) if len(example.words) == 14][:1]
    n = 12
    words = one.words * n
    entities = [Entity(e.begin + k * 14, e.end + k * 14, e.label) for k in range(n) for e in one.entities]
    readings = tool.read_words([words])
    assert len(readings) > 3
    assert all(len(reading.encoded) <= 32 for reading in readings)
    assert [word for reading in readings for word in reading.words] == list(range(len(words)))
    assert all(place is not None for reading in readings for place in reading.places)
    assert tool.score([TaggedSentence(words, tuple(entities))])["recall"] > 90


def test_every_word_gets_a_tag_even_without_tokens(trained):
    tool = load(trained[0])
    strange = [["x" * 500], ["Ann", "", "\u200b", "Rome"], ["</s>", "<pad>", "Bob"], ["a b", "Eva"], [" "]]
    for words, entities in zip(strange, tool.tag(strange), strict=True):
        assert all(0 <= entity.begin < entity.end <= len(words) for entity in entities)
    missed = TaggedSentence(("\u00ad" * 100,) * 40, (Entity(0, 1, "PLACE"),))
    assert tool.score([missed])["recall"] == 0


def test_one_sentence_and_many_give_the_same(trained):
    tool = load(trained[0])
    texts = [example.words for example in sentences(30, 7)] + [("the", "Ann") * 60]
    assert tool.tag(texts) == [tool.tag([words])[0] for words in texts]


def test_the_first_token_of_a_word_has_its_target(trained):
    folder, _ = trained
    tool = load(folder)
    example = TaggedSentence(("unseenword", "Ann"), (Entity(1, 2, "PERSON"),))
    (row,) = Tagging(TaggingConfig()).rows(tool, [example])
    numbers = [tool.paths.tags[number] for number in row.answer if number != IGNORED]
    assert numbers == ["O", "S-PERSON"]
    assert row.answer[0] == 0
    assert len(row.answer) == len(row.ids) > 4


@pytest.mark.parametrize("chance", [0.0, 0.3])
def test_an_interrupted_run_ends_with_the_same_weights(data, tmp_path, monkeypatch, chance):
    from glassformer.training.trainer import Trainer

    config = quick(data, tokenizer=TokenizerConfig(bpe_dropout=chance, bpe_versions=2))
    config = replace(config, train=replace(config.train, updates=30, eval_every=30, save_every=30))
    Tagging(config).train(tmp_path / "whole")
    stops, plain = [17], Trainer._update

    def update(self):
        if stops and self.state.position == stops[0]:
            stops.pop(0)
            self.save()
            raise KeyboardInterrupt
        plain(self)

    monkeypatch.setattr(Trainer, "_update", update)
    with pytest.raises(KeyboardInterrupt):
        Tagging(config).train(tmp_path / "parts")
    Tagging(config).train(tmp_path / "parts")
    one, two = (load(tmp_path / name).model for name in ("whole", "parts"))
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(a, b)


def test_bpe_dropout_changes_the_tokens_and_keeps_the_targets(data, tmp_path):
    task = Tagging(quick(data, tokenizer=TokenizerConfig(bpe_dropout=0.5, bpe_versions=3)))
    train = list(task.config.data.splits().train)
    ready = task.prepare(RunFolder(tmp_path))
    usual = task.rows(ready.pipeline, train)
    versions = [version.rows for version in ready.batches.versions]
    assert len(versions) == 3
    for rows in versions:
        assert [[n for n in row.answer if n != IGNORED] for row in rows] == [
            [n for n in row.answer if n != IGNORED] for row in usual
        ]
        decode = ready.pipeline.reader.tokenizer.decode
        assert [decode(row.ids) for row in rows] == [decode(row.ids) for row in usual]
    assert sum(len(row.ids) for row in versions[0]) > sum(len(row.ids) for row in usual)
    assert [list(row.ids) for row in versions[0]] != [list(row.ids) for row in versions[1]]


def test_entity_swaps_keep_the_other_words(data, tmp_path):
    task = Tagging(replace(quick(data, tokenizer=TokenizerConfig(bpe_versions=2)), swap_entities=0.9))
    train = list(task.config.data.splits().train)
    ready = task.prepare(RunFolder(tmp_path))
    versions = [version.rows for version in ready.batches.versions]
    assert len(versions) == 2
    assert all(len(rows) == len(train) for rows in versions)
    assert [list(row.ids) for row in versions[0]] != [list(row.ids) for row in versions[1]]
    tags = ready.pipeline.paths.tags
    for rows in versions:
        for row, sentence in zip(rows, train, strict=True):
            found = [tags[number] for number in row.answer if number != IGNORED]
            assert [tag[2:] for tag in found if tag[0] in "BS"] == [entity.label for entity in sentence.entities]


def test_word_dropout_hides_all_tokens_of_a_word(data, tmp_path):
    config = quick(data)
    task = Tagging(replace(config, model=replace(config.model, vocab_size=270, max_len=256)))
    batch = task.prepare(RunFolder(tmp_path)).batches[0]
    task.config = replace(task.config, train=replace(task.config.train, word_dropout=1 - 1e-9))
    tokens = task.hiding.hide(batch.tokens, task.hidden(batch))
    assert ((tokens == 3) == (batch.tokens > 3)).all()
    task.config = replace(task.config, train=replace(task.config.train, word_dropout=0.5))
    torch.manual_seed(0)
    hidden = task.hiding.hide(batch.tokens, task.hidden(batch)) == 3
    inner = batch.mask & (batch.answers == IGNORED) & (batch.tokens > 3)
    inner[:, 0] = False
    assert inner.any()
    assert (hidden[inner] == hidden.roll(1, 1)[inner]).all()
    assert 0.4 < hidden[batch.answers != IGNORED].float().mean() < 0.6


def test_r_drop_adds_the_disagreement_of_two_passes(data, tmp_path):
    config = quick(data)
    task = Tagging(replace(config, model=replace(config.model, dropout=0.0)))
    ready = task.prepare(RunFolder(tmp_path))
    model, batch = ready.pipeline.model.train(), ready.batches[0]
    once, cost = task.loss(model, batch), task.flops(model, batch)
    task.config = replace(task.config, train=replace(config.train, r_drop=1.0))
    assert task.loss(model, batch).item() == pytest.approx(once.item(), rel=1e-5)  # nothing differs
    assert task.flops(model, batch) == 2 * cost
    task.config = replace(task.config, train=replace(task.config.train, word_dropout=0.5))
    torch.manual_seed(0)
    apart = task.loss(model, batch)
    task.config = replace(task.config, train=replace(task.config.train, r_drop=1e-9))
    torch.manual_seed(0)
    assert apart > task.loss(model, batch)


def test_training_starts_from_a_checkpoint(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "old", "cat", "sees"]
    words += [name.lower() for name in TOWNS + FOLK]
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48}
    torch.manual_seed(0)
    theirs = transformers.BertModel(transformers.BertConfig(vocab_size=len(words), **sizes))
    theirs.save_pretrained(tmp_path / "bert")
    (tmp_path / "bert" / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    train = write(tmp_path / "single.conll", sentences(300, longest=1))  # what is learned in a hundred updates
    valid = write(tmp_path / "valid.conll", sentences(60, 1, longest=1))
    config = quick(TaggedData(data=(train,), valid=(valid,)), start_from=tmp_path / "bert")
    config = replace(config, train=replace(config.train, lr=4e-3))
    assert Tagging(config).train(tmp_path / "model")["f1"] > 90
    tool = load(tmp_path / "model")
    assert tool.run(["The cat sees Ann"]) == ["The cat sees [Ann PERSON]"]
    (reading,) = tool.read_words([["Ann", "\x01", "Rome"]])
    assert reading.places == [1, None, 2]  # a control character is read as nothing
    ((one, two),) = tool.tag([["Ann", "\x01", "Rome"]])
    assert (one.begin, one.label, two.end, two.label) == (0, "PERSON", 3, "PLACE")


def columns(tmp_path, text, name="data.conll", **options):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return TaggedReader(**options).read([path])


def test_columns_are_read_in_any_scheme(tmp_path):
    wanted = [Entity(0, 1, "ORG"), Entity(2, 3, "MISC")]
    for tags in ("I-ORG O I-MISC", "B-ORG O B-MISC", "S-ORG O S-MISC"):
        lines = [f"{word}\tx  {tag}" for word, tag in zip(("EU", "a\u00a0b", "German"), tags.split(), strict=True)]
        (found,) = columns(tmp_path, "\r\n".join(["-DOCSTART- -X- O", "", *lines, "", "", " "]))
        assert (found.words, list(found.entities)) == (("EU", "a\u00a0b", "German"), wanted)
        assert found.where.endswith("data.conll:3")


def test_columns_are_chosen_by_number(tmp_path):
    text = "1 Ann B-PER x\n2 sees O x\n"
    (found,) = columns(tmp_path, text, word_column=2, tag_column=3)
    assert (found.words, found.entities) == (("Ann", "sees"), (Entity(0, 1, "PER"),))
    assert columns(tmp_path, text, word_column=-3, tag_column=-2)[0][:2] == found[:2]
    with pytest.raises(ValueError, match="word_column=0: expected 1 or more"):
        TaggedReader(word_column=0)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("a O\nb\n", {}, "data.conll:2: 1 column: expected a word in column 1 and a tag in column -1"),
        ("a O\n", {"tag_column": 4}, "data.conll:1: 2 columns: expected .* column 4"),
        ("a O\n\nb PER\n", {}, "data.conll:3: 'PER' is no tag of IOB2: expected O, or B-, I- and a label"),
        ("a S-X\nb U-X\n", {}, "data.conll:2: 'U-X' is no tag of BIOES"),
        ("a O\nb I-X\n", {"scheme": "iob2"}, "data.conll:2: 'I-X' continues no entity"),
        ("a B-X\nb I-X\n\nc E-X", {}, "data.conll:2: 'I-X' ends the sentence inside"),
        ("a O\nb I-X\n\nc B-X\n", {}, "data.conll:2: .* at .*data.conll:4 .* scheme='iob1' reads both"),
        (b"a O\n\xff O\n", {}, "data.conll:2: not valid UTF-8"),
    ],
)
def test_bad_columns_are_refused_with_file_and_line(text, options, message, tmp_path):
    with pytest.raises(BadRecordError, match=message):
        columns(tmp_path, text, **options)


def test_a_bad_sentence_can_be_skipped(tmp_path):
    found = columns(tmp_path, "a B-X\n\nb\n\nc E-X\n\nd S-X\n", on_bad="skip")
    assert [sentence.words for sentence in found] == [("d",)]
    assert found.skipped.total() == 3
    assert len(columns(tmp_path, "a O\nb I-X\n\nc B-X\n", scheme="iob1")) == 2


def spans(tmp_path, text, spans):
    return columns(tmp_path, json.dumps({"text": text, "spans": spans}) + "\n", "data.jsonl")


def test_spans_become_entities(tmp_path):
    (found,) = spans(tmp_path, "(EU) rejects New York's call", [[13, 21, "LOC"], [1, 3, "ORG"]])
    assert found.words == ("(", "EU", ")", "rejects", "New", "York", "'s", "call")
    assert found.entities == (Entity(1, 2, "ORG"), Entity(4, 6, "LOC"))


def test_spans_may_be_objects_and_be_named_as_run_writes_them(tmp_path):
    places = [{"start": 13, "end": 21, "label": "LOC", "text": "New York"}, {"start": 1, "end": 3, "label": "ORG"}]
    text = "(EU) rejects New York's call"
    (found,) = spans(tmp_path, text, places)
    assert found.entities == (Entity(1, 2, "ORG"), Entity(4, 6, "LOC"))
    lines = json.dumps({"text": text, "entities": places}) + "\n"
    assert columns(tmp_path, lines, "data.jsonl") == [found]
    both = json.dumps({"text": text, "entities": places, "spans": []}) + "\n"
    assert columns(tmp_path, both, "data.jsonl")[0].entities == (), "spans is the documented field"
    with pytest.raises(BadRecordError, match="no spans under 'named'"):
        columns(tmp_path, lines, "data.jsonl", spans_column="named")


@pytest.mark.parametrize(
    ("text", "given", "message"),
    [
        ("New York", [[0, 5, "LOC"]], r"the span \[0, 5, 'LOC'\], 'New Y', does not fit .* 'New' 'York': move it"),
        ("New York", [[3, 8, "LOC"]], "does not fit"),
        ("New York", [[4, 9, "LOC"]], "leaves the text of 8 characters"),
        ("New York", [[-4, 8, "LOC"]], "leaves the text"),
        ("New York", [[3, 3, "LOC"]], "is empty"),
        ("New York", [[0, 8, "LOC"], [4, 8, "PER"]], "two spans overlap, LOC and PER"),
        ("New York", [[0, 8, " "]], "has no label"),
        ("New York", [[0, 8]], r"is no span: expected \[begin, end, label\]"),
        ("New York", [[True, 8, "LOC"]], "is no span"),
        ("New York", None, "no spans under 'spans'"),
        ("New York", [{"start": 0, "end": 8}], "is no span: expected"),
        ("New York", [{"start": 0, "end": 8, "label": "LOC", "text": "Old York"}], "but its text is 'Old York'"),
        (" ", [], "no text under 'text'"),
        ("\ud800 x", [], "half a surrogate pair"),
    ],
)
def test_bad_spans_are_refused_with_file_and_line(text, given, message, tmp_path):
    with pytest.raises(BadRecordError, match=rf"data.jsonl:1: .*{message}"):
        spans(tmp_path, text, given)


def test_unusable_data_is_refused_with_a_reason(tmp_path):
    with pytest.raises(ValueError, match="no data: expected at least one file"):
        Tagging(TaggingConfig()).train(tmp_path / "other")
    (tmp_path / "plain.conll").write_text("".join(f"a{n} O\n\n" for n in range(99)), encoding="utf-8")
    with pytest.raises(ValueError, match="no word is tagged"):
        Tagging(quick(TaggedData(data=(tmp_path / "plain.conll",)))).train(tmp_path / "model")
    with pytest.raises(ValueError, match="is a table: expected CoNLL's columns"):
        TaggedReader().read([write(tmp_path / "x.tsv", [])])
    with pytest.raises(FileNotFoundError, match=r"none\.conll: no such file"):
        TaggedReader().read([tmp_path / "none.conll"])


def test_a_label_that_was_not_learned_is_named(trained, tmp_path):
    (tmp_path / "other.conll").write_text("Ann B-PERSON\n\nRhine B-RIVER\n", encoding="utf-8")
    examples = TaggedData(data=(tmp_path / "other.conll",)).examples()
    with pytest.raises(ValueError, match=r"other.conll:3: .*'RIVER' was not learned: expected one of PERSON, PLACE"):
        load(trained[0]).score(examples)


def test_the_split_follows_the_words_of_a_sentence(tmp_path):
    rare = TaggedSentence(("the", "Rhine"), (Entity(1, 2, "RIVER"),))
    path = write(tmp_path / "all.conll", [*sentences(200), rare])
    train, valid, _ = TaggedData(data=(path,)).splits()
    assert 0 < len(valid) < len(train)
    assert not {example.words for example in train} & {example.words for example in valid}
    assert rare.entities in [example.entities for example in train]


def test_generated_names_of_one_split_are_not_in_another():
    def names(side):
        return {
            " ".join(words[entity.begin : entity.end])
            for words, entities, _ in generate_sentences(side)
            for entity in entities
            if entity.label in ("PERSON", "PLACE")
        }

    sides = [names(side) for side in ("train", "valid", "test")]
    assert all(len(side) > 50 for side in sides)
    assert not sides[0] & sides[1] | sides[0] & sides[2] | sides[1] & sides[2]
    assert generate_sentences("train") == generate_sentences("train")


def test_the_baseline_memorizes_the_tag_of_each_word():
    config = Tagging.demo()
    how, scores = Tagging(config).baseline(config.data.splits())
    assert how == "each word as it was tagged most often"
    assert 5 < scores["f1"] < 50


def test_the_command_line_trains_scores_and_runs(data, tmp_path, monkeypatch, capsys):
    from glassformer.cli import main

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["glassformer", *map(str, arguments)])
        main()
        return "".join(capsys.readouterr())

    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        "[model]\nvocab_size = 330\nd_model = 32\nd_ff = 48\ndropout = 0.1\nembedding_dropout = 0.0\n"
        "[train]\nupdates = 80\nwarmup = 5\nlr = 8e-3\nmax_tokens = 512\nword_dropout = 0.0\n",
        encoding="utf-8",
    )
    train, valid = data.data[0], data.valid[0]
    out = tmp_path / "m"
    told = call("train", "tagging", "--recipe", recipe, "--data", train, "--valid", valid, "--out", out)
    assert "300 sentences to learn from, 60 to validate on" in told
    assert "2 labels: P" in told
    assert json.loads(call("eval", out, "--data", valid, "--json", "--quiet").strip())["f1"] > 50
    assert "F1 of PLACE" in call("eval", out, "--data", valid)
    monkeypatch.setattr(sys, "stdin", io.StringIO("the old cat\n\n"))
    assert call("run", out).splitlines() == ["the old cat", ""]
    lines = "".join(" ".join(one.words) + "\n" for one in sentences(60, 1))
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    (tmp_path / "found.jsonl").write_text(call("run", out, "--json"), encoding="utf-8")
    scores = json.loads(call("eval", out, "--data", tmp_path / "found.jsonl", "--json", "--quiet").strip())
    assert scores["f1"] == 100, "the predictions of run --json are read as they were predicted"
    told = call(
        "train", "tagging", "--from", out, "--data", tmp_path / "found.jsonl", "--updates", 2, "--out", f"{out}2"
    )
    assert "2 labels: P" in told
