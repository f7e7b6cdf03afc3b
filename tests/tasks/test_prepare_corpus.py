"""A corpus is tokenized into shards: complete, resumable, in parts, and with the same result however it was divided."""

import json
import os
import shutil
from dataclasses import replace

import pytest

from glassformer.checkpoint.safe_files import CorruptFolderError
from glassformer.data.batching import pair_shards
from glassformer.data.readers.text_files import BadRecordError
from glassformer.tasks import prepare_corpus as module
from glassformer.tasks import translation
from glassformer.tasks.configs.task_options import make_config
from glassformer.tasks.language import LanguageConfig
from glassformer.tasks.prepare_corpus import estimate_size, prepare_corpus
from glassformer.tasks.tokenized_corpus import TokenizedCorpus
from glassformer.tasks.translation import TranslationConfig
from glassformer.text.tokenizer import END


@pytest.fixture(autouse=True)
def _small_units(monkeypatch):
    monkeypatch.setattr(module, "UNIT_BYTES", 2000)
    monkeypatch.setattr(translation, "SHARD_ROWS", 40)
    monkeypatch.setattr(pair_shards, "SHARD_ROWS", 40)


@pytest.fixture
def files(tmp_path):
    for name in ("news", "web"):
        rows = [f"{name} sentence number {n} of many" for n in range(150)]
        (tmp_path / f"{name}.en").write_text("\n".join(rows) + "\n", encoding="utf-8")
        (tmp_path / f"{name}.de").write_text("\n".join(row[::-1] for row in rows) + "\n", encoding="utf-8")
    return tmp_path


def translation_config(folder, names=("news", "web"), **options):
    given = {
        "data.source": [folder / f"{name}.en" for name in names],
        "data.target": [folder / f"{name}.de" for name in names],
        "model.vocab_size": 300,
    }
    return make_config(TranslationConfig, {**given, **options})


def pairs_of(corpus, version=0):
    tokenizer, found = corpus.tokenizer(), []
    for shards in corpus.shards(version).values():
        for shard in map(pair_shards.PairShard, shards):
            for row in range(len(shard.lengths("source"))):
                found.append(tuple(tokenizer.decode(shard.ids(side, row)) for side in ("source", "target")))
    return found


def test_training_and_validation_pairs_are_all_pairs(files):
    corpus = prepare_corpus("translation", translation_config(files), files / "out", processes=1)
    valid = corpus.valid_examples(translation_config(files).data)
    whole = {
        (source, target)
        for name in ("news", "web")
        for source, target in zip(
            *((files / f"{name}.{side}").read_text(encoding="utf-8").splitlines() for side in ("en", "de")), strict=True
        )
    }
    trained = pairs_of(corpus)
    assert len(trained) + len(valid) == len(whole) == 300
    assert {*trained, *map(tuple, valid)} == whole
    assert 0 < len(valid) < 40
    assert corpus.size.examples == len(trained)
    assert len(corpus.versions[0]) == 8, "parts of 40 lines"
    batches = corpus.pair_batches(0, max_tokens=400, seed=1)
    assert sum(batches.n_rows(number) for number in range(len(batches))) == len(trained)


def test_processes_and_parts_write_the_same_files(files):
    config = translation_config(files)
    prepare_corpus("translation", config, files / "one", processes=1)
    prepare_corpus("translation", config, files / "two", processes=2)
    assert prepare_corpus("translation", config, files / "three", processes=1, part=(2, 2)) is None
    with pytest.raises(ValueError, match="three is not complete: run glassformer prepare again"):
        TokenizedCorpus(files / "three")
    assert prepare_corpus("translation", config, files / "three", processes=1, part=(1, 2)) is not None
    contents = [
        {path.relative_to(files / name): path.read_bytes() for path in (files / name).rglob("*") if path.is_file()}
        for name in ("one", "two", "three")
    ]
    assert contents[0] == contents[1] == contents[2]


def test_an_interrupted_preparation_is_resumed(files, monkeypatch):
    config, written = translation_config(files), []
    from glassformer.tasks import prepare_units

    write = prepare_units.write_unit

    def fail(folder, number):
        if len(written) == 3:
            raise KeyboardInterrupt
        written.append(number)
        write(folder, number)

    monkeypatch.setattr(prepare_units, "write_unit", fail)
    with pytest.raises(KeyboardInterrupt):
        prepare_corpus("translation", config, files / "out", processes=1)
    monkeypatch.setattr(
        prepare_units, "write_unit", lambda folder, number: (written.append(number), write(folder, number))
    )
    assert prepare_corpus("translation", config, files / "out", processes=1) is not None
    assert sorted(written) == list(range(8)), "no unit was written twice"


def test_other_options_or_files_are_refused(files):
    prepare_corpus("translation", translation_config(files), files / "out", processes=1)
    with pytest.raises(ValueError, match=r"was prepared with vocab_size 300 \(now 400\)"):
        prepare_corpus("translation", translation_config(files, **{"model.vocab_size": 400}), files / "out")
    for names, problem in (
        (["news"], "was prepared with source with .*web.en: expected the same"),
        (["web", "news"], "was prepared with the files of source in another order: expected the same"),
    ):
        with pytest.raises(ValueError, match=problem):
            prepare_corpus("translation", translation_config(files, names), files / "out")
    (files / "web.en").write_text("shorter\n" * 150, encoding="utf-8")
    with pytest.raises(ValueError, match="the data files have changed"):
        prepare_corpus("translation", translation_config(files), files / "out")
    with pytest.raises(ValueError, match="holds other files"):
        prepare_corpus("translation", translation_config(files), files)
    with pytest.raises(ValueError, match=r"--from .*: expected none"):
        prepare_corpus("translation", replace(translation_config(files), start_from=files), files / "x")


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.full)])
def test_a_bad_record_names_its_line_and_can_be_skipped(files, processes):
    lines = (files / "web.de").read_text(encoding="utf-8").splitlines()
    lines[120] = " "
    (files / "web.de").write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises((BadRecordError, ValueError), match=r"web.de:121: empty target"):
        prepare_corpus("translation", translation_config(files), files / "out", processes=processes)
    skipping = translation_config(files, **{"data.on_bad": "skip"})
    assert prepare_corpus("translation", skipping, files / "two", processes=1).skipped == {"empty target": 1}


@pytest.mark.parametrize("name", ["units/00003/v0/00000/source.bin", "units/00003/unit.json", "valid.jsonl"])
@pytest.mark.parametrize("part", [(1, 1), (2, 2)])
def test_a_damaged_file_is_made_anew(files, name, part):
    config, out = translation_config(files), files / "out"
    prepare_corpus("translation", config, out, processes=1)
    contents = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    (out / name).write_bytes((out / name).read_bytes()[:-4])
    if not name.endswith("unit.json"):
        with pytest.raises(CorruptFolderError, match="run glassformer prepare again, which makes it anew"):
            TokenizedCorpus(out)
    assert prepare_corpus("translation", config, out, processes=1, part=part) is not None
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == contents


def test_a_changed_tokenizer_is_refused(files):
    config, out = translation_config(files), files / "out"
    assert prepare_corpus("translation", config, out, processes=1, part=(1, 2)) is None
    text = (out / "tokenizer.json").read_text(encoding="utf-8")
    other = prepare_corpus("translation", translation_config(files, **{"model.vocab_size": 310}), files / "other")
    (out / "tokenizer.json").write_bytes((other.folder / "tokenizer.json").read_bytes())
    with pytest.raises(CorruptFolderError, match=r"tokenizer.json has changed since the data was tokenized"):
        prepare_corpus("translation", config, out, processes=1, part=(2, 2))
    (out / "tokenizer.json").write_text(text, encoding="utf-8")
    shutil.copytree(other.folder / "units", out / "units", dirs_exist_ok=True)
    with pytest.raises(ValueError, match=r"units/00000 was made with another tokenizer: remove it and run"):
        prepare_corpus("translation", config, out, processes=1, part=(2, 2))
    shutil.rmtree(out / "units")
    assert prepare_corpus("translation", config, out, processes=1) is not None
    (out / "tokenizer.json").write_bytes((other.folder / "tokenizer.json").read_bytes())
    with pytest.raises(CorruptFolderError, match=r"tokenizer.json has changed since the data was tokenized"):
        TokenizedCorpus(out)


def test_a_mix_keeps_its_files_apart(files):
    config = translation_config(files, **{"data.mix": "news=0.8,web=0.2"})
    corpus = prepare_corpus("translation", config, files / "out", processes=1)
    assert {name: len(shards) for name, shards in corpus.shards().items()} == {"news": 4, "web": 4}
    batches, tokenizer = corpus.pair_batches(0, max_tokens=100, seed=0), corpus.tokenizer()
    news = sum(tokenizer.decode(batches[number].source[0].tolist()).startswith("news") for number in range(1000))
    assert news == 800
    first = corpus.valid_examples(config.data)[:6]
    assert {one.source.split()[0] for one in first} == {"news", "web"}, "the first validation examples are of both"
    even = corpus.pair_batches(0, max_tokens=100, seed=0, mix="news=1,web=1")
    assert sum(even.find(number)[0] for number in range(1000)) == 500
    with pytest.raises(ValueError, match=r"expected the names with which .* was prepared: news, web"):
        corpus.pair_batches(0, max_tokens=100, seed=0, mix="news=1")
    with pytest.raises(ValueError, match=r"web.en belongs to none of them"):
        prepare_corpus("translation", translation_config(files, **{"data.mix": "news=1"}), files / "x")
    mixed = translation_config(files, ("news",), **{"data.mix": "news=1,books=1"})
    with pytest.raises(ValueError, match=r"no training file belongs to books"):
        prepare_corpus("translation", mixed, files / "y")


def test_bpe_dropout_has_several_versions(files):
    options = {"tokenizer.bpe_dropout": 0.5, "tokenizer.bpe_versions": 2}
    corpus = prepare_corpus("translation", translation_config(files, **options), files / "out", processes=1)
    first, second = (
        [path.read_bytes() for shard in corpus.shards(version)[""] for path in shard.glob("*.bin")]
        for version in (0, 1)
    )
    assert first != second
    assert pairs_of(corpus, 0) == pairs_of(corpus, 1)


def test_one_long_text_is_read_in_pieces_without_an_end_between_them(tmp_path):
    (tmp_path / "a.txt").write_text("".join(f"line {n}\n" for n in range(2000)), encoding="utf-8")
    config = make_config(LanguageConfig, {"data.data": [tmp_path / "a.txt"], "model.vocab_size": 300})
    corpus = prepare_corpus("language", config, tmp_path / "out", processes=1)
    stream = corpus.stream()
    assert len(corpus.versions[0]) > 5
    assert not stream.has_documents
    text = corpus.tokenizer().decode(stream.read(0, len(stream)).tolist())
    (valid,) = corpus.valid_examples(config.data)
    assert text + valid.text == (tmp_path / "a.txt").read_text(encoding="utf-8")
    assert 0.05 < len(valid.text) / len(text) < 0.2
    assert END not in stream.read(0, len(stream))


@pytest.mark.parametrize("mix", ["news=0.7,web=0.3", ""])
@pytest.mark.parametrize("n_lines", [100, 2000])
def test_the_ends_of_texts_are_held_out_if_no_text_can_be(tmp_path, mix, n_lines):
    """Each text is the only one of its share of the mix, or is larger than a unit."""
    texts = {name: "".join(f"{name} {n}\n" for n in range(n_lines)) for name in ("news", "web")}
    for name, text in texts.items():
        (tmp_path / f"{name}.txt").write_text(text, encoding="utf-8")
    given = {"data.data": [tmp_path / f"{name}.txt" for name in texts], "data.mix": mix, "model.vocab_size": 300}
    config = make_config(LanguageConfig, given)
    corpus = prepare_corpus("language", config, tmp_path / "out", processes=1)
    stream, valid = corpus.stream(), [one.text for one in corpus.valid_examples(config.data)]
    learned = corpus.tokenizer().decode([one for one in stream.read(0, len(stream)).tolist() if one != END])
    if mix or n_lines == 2000:
        assert stream.n_documents == corpus.size.examples == len(valid) == 2
        for name, end in zip(texts, valid, strict=True):
            assert texts[name].endswith(end)
            assert texts[name].removesuffix(end) in learned
            assert len(end) < 0.2 * len(texts[name])
    else:
        assert {learned, *valid} == set(texts.values()), "one of two short texts is held out"


def test_a_share_of_a_mix_that_is_held_out_whole_is_refused(tmp_path):
    for name in ("news", "web"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"text": f"{name} again"}) + "\n", encoding="utf-8")
    files = [tmp_path / f"{name}.jsonl" for name in ("news", "web")]
    given = {"data.data": files, "data.mix": "news=0.7,web=0.3", "model.vocab_size": 300}
    with pytest.raises(ValueError, match=r"all texts of (news|web) are held out for validation: expected more"):
        prepare_corpus("language", make_config(LanguageConfig, given), tmp_path / "out", processes=1)


def test_a_preparation_that_cannot_be_planned_leaves_no_folder(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n", encoding="utf-8")
    given = {"data.data": [tmp_path / "a.txt"], "data.mix": "b=1", "model.vocab_size": 300}
    for folder in ("new", "there"):
        (tmp_path / "there").mkdir(exist_ok=True)
        with pytest.raises(ValueError, match="belongs to none of them"):
            prepare_corpus("language", make_config(LanguageConfig, given), tmp_path / folder, processes=1)
    assert not (tmp_path / "new").exists()
    assert (tmp_path / "there").is_dir(), "the user's own folder stays"


def test_documents_are_separated_and_some_are_held_out(tmp_path):
    records = [json.dumps({"text": f"document {n} " * 5}) for n in range(200)]
    (tmp_path / "a.jsonl").write_text("\n".join(records), encoding="utf-8")
    config = make_config(LanguageConfig, {"data.data": [tmp_path / "a.jsonl"], "model.vocab_size": 300})
    corpus = prepare_corpus("language", config, tmp_path / "out", processes=1)
    stream, valid = corpus.stream(), corpus.valid_examples(config.data)
    ids = stream.read(0, len(stream)).tolist()
    assert ids[0] == ids[-1] == END
    assert ids.count(END) - 1 == stream.n_documents == corpus.size.examples == 200 - len(valid)
    assert len(corpus.window_batches(16, max_tokens=64, seed=0)) > 40


def test_the_size_of_large_data_is_estimated(files):
    config = translation_config(files)
    found = estimate_size(config.data, lambda pair: (pair.source, pair.target))
    assert found.examples == 300
    true = sum(len((files / f"{name}.en").read_text(encoding="utf-8")) - 150 for name in ("news", "web"))
    assert found.source_characters == pytest.approx(true, rel=0.1)


def test_line_separators_of_unicode_do_not_divide_a_validation_example(tmp_path):
    """U+2028 and U+0085 are no line breaks of a file: JSON does not escape them."""
    texts = [f"one\u2028two\x85{n}" for n in range(60)]
    (tmp_path / "a.tsv").write_text("source\ttarget\n" + "".join(f"{x}\t{x}\n" for x in texts), encoding="utf-8")
    config = make_config(TranslationConfig, {"data.source": [tmp_path / "a.tsv"], "model.vocab_size": 300})
    corpus = prepare_corpus("translation", config, tmp_path / "pairs", processes=1)
    valid = corpus.valid_examples(config.data)
    assert valid
    assert {pair.source for pair in valid} | {source for source, _ in pairs_of(corpus)} == {*texts}


def test_files_that_were_edited_without_a_new_size_are_refused(files):
    prepare_corpus("translation", translation_config(files), files / "out", processes=1)
    text = (files / "web.en").read_text(encoding="utf-8")
    (files / "web.en").write_text(text.replace("many", "more"), encoding="utf-8")
    os.utime(files / "web.en", (0, 0))  # the clock of a file system may be coarse
    with pytest.raises(ValueError, match="the data files have changed"):
        prepare_corpus("translation", translation_config(files), files / "out")


def test_an_empty_file_beside_a_full_one_is_an_error_that_names_both(files):
    (files / "web.de").write_text("", encoding="utf-8")
    with pytest.raises(BadRecordError, match=r"web.en:1: .*web.de has fewer lines"):
        prepare_corpus("translation", translation_config(files), files / "out", processes=1)
