"""Mistakes that people make: each ends in one sentence that names the next step, and the next step works.

A row of MISTAKES has the command, its exit code, the sentence, and the step that the sentence names, which is then
tried in the same folder.
"""

import os
import shutil
import signal
import sys
from dataclasses import dataclass

import pytest
import torch

from glassformer import preset
from glassformer.pipelines.translator import Translator
from glassformer.tasks.translation import PairData, Translation, TranslationConfig
from glassformer.training.journal import Journal
from glassformer.training.train_config import TrainConfig
from newcomer.files import labeled, write_files, write_lines
from newcomer.shell import Shell

SHORT = "--updates 2 --max-tokens 256 --device cpu"
TRANSLATE = f"train translation --source train.en --target train.de {SHORT}"
CLASSIFY = f"train classification --data reviews.tsv {SHORT}"


@dataclass(frozen=True)
class Mistake:
    """A wrong command, its error and the right command."""

    command: str
    code: int
    sentence: str
    """Part of the one line on stderr that begins with `glassformer: `."""
    next_step: str
    """The command that the sentence asks for; it must succeed."""


MISTAKES = {
    "typo in a verb": Mistake(f"trian{CLASSIFY[5:]} --out new", 2, "did you mean 'train'?", f"{CLASSIFY} --out new"),
    "typo in a task": Mistake(
        f"train clasification --data reviews.tsv {SHORT} --out new",
        2,
        "'clasification' is not a task: did you mean 'classification'?",
        f"{CLASSIFY} --out new",
    ),
    "typo in a flag": Mistake(
        f"{CLASSIFY} --out new --warmpu 3", 2, "did you mean --warmup?", f"{CLASSIFY} --out new --warmup 1"
    ),
    "no --out": Mistake(CLASSIFY, 2, "--out is missing: expected a name for the model folder", f"{CLASSIFY} --out new"),
    "wrong value": Mistake(
        f"{CLASSIFY} --out new --lr fast", 2, "--lr fast: expected a number", f"{CLASSIFY} --out new --lr 0.001"
    ),
    "missing file": Mistake(
        f"train classification --data reviews.tvs {SHORT} --out new",
        1,
        "reviews.tvs: no such file: did you mean reviews.tsv?",
        f"{CLASSIFY} --out new",
    ),
    "wrong column": Mistake(
        f"train classification --data train.tsv.gz {SHORT} --out new",
        1,
        "train.tsv.gz:1: no column 'text' in the header (sentence, label): name yours with --text-column",
        f"train classification --data train.tsv.gz --text-column sentence {SHORT} --out new",
    ),
    "no header": Mistake(
        f"train classification --data bare.tsv {SHORT} --out new",
        1,
        "(it is good 0, good): name yours with --text-column, or put a header line first",
        f"{CLASSIFY} --out new",
    ),
    "no target": Mistake(
        f"train translation --source train.en {SHORT} --out new",
        1,
        "train.en has one text per line: expected --target with its translations",
        f"{TRANSLATE} --out new",
    ),
    "files of different length": Mistake(
        f"train translation --source train.en --target test.de {SHORT} --out new",
        1,
        "train.en:21: test.de has fewer lines: expected two files aligned line by line",
        f"{TRANSLATE} --out new",
    ),
    "empty file": Mistake(
        f"train translation --source empty.en --target empty.de {SHORT} --out new",
        1,
        "empty.en, empty.de are empty: expected text",
        f"{TRANSLATE} --out new",
    ),
    "empty table": Mistake(
        f"train classification --data empty.tsv {SHORT} --out new",
        1,
        "empty.tsv:1: the file is empty: expected a header",
        f"{CLASSIFY} --out new",
    ),
    "a single pair": Mistake(
        f"train translation --source one.en --target one.de {SHORT} --out new",
        1,
        "no pairs are left for validation: expected files for it (--valid-source and --valid-target), or more data",
        "train translation --source one.en --target one.de --valid-source val.en --valid-target val.de "
        f"{SHORT} --out new",
    ),
    "a single class": Mistake(
        f"train classification --data one.tsv {SHORT} --out new",
        1,
        "all texts have the labels ['good']: expected at least two classes. Add texts of another class",
        f"{CLASSIFY} --out new",
    ),
    "a binary file as text": Mistake(
        f"train language --data picture.png {SHORT} --out new",
        1,
        "picture.png:1: not valid UTF-8: expected a text file in UTF-8",
        f"train language --data texts.txt {SHORT} --out new",
    ),
    "some bad lines": Mistake(
        f"train classification --data holes.tsv {SHORT} --out new",
        1,
        "holes.tsv:42: empty text (on_bad='skip', or --on-bad skip, skips such records)",
        f"train classification --data holes.tsv {SHORT} --on-bad skip --out new",
    ),
    "texts where a table is expected": Mistake(
        f"train classification --data texts.txt {SHORT} --out new",
        1,
        "for unlabeled text use the tasks language or masking",
        f"train masking --data texts.txt {SHORT} --out new",
    ),
    "a folder as a file": Mistake(
        f"train classification --data notes {SHORT} --out new",
        1,
        "notes is a folder: expected a file",
        f"{CLASSIFY} --out new",
    ),
    "the data as output": Mistake(
        f"{CLASSIFY} --out reviews.tsv",
        1,
        "reviews.tsv is a file: expected the name of a new folder",
        f"{CLASSIFY} --out new",
    ),
    "a folder with own files as output": Mistake(
        f"{CLASSIFY} --out notes",
        1,
        "notes holds files that Glassformer did not write (a.txt): they are never replaced. Choose another folder",
        f"{CLASSIFY} --out new",
    ),
    "output inside the data": Mistake(
        f"train language --data notes {SHORT} --out notes/new",
        1,
        "is inside the data folder notes: the next run would read the model as data. Choose a folder outside it",
        f"train language --data notes {SHORT} --out new",
    ),
    "an existing model as output": Mistake(
        f"{CLASSIFY} --out old-model",
        1,
        "old-model holds a model already, which this run did not write. Use --overwrite to replace it, or choose",
        f"{CLASSIFY} --out old-model --overwrite",
    ),
    "flags of another task": Mistake(
        f"train classification --source train.en --target train.de {SHORT} --out new",
        2,
        "--source is not an option of train classification: its data is given with --data PATH",
        f"{CLASSIFY} --out new",
    ),
    "no GPU": Mistake(
        f"{CLASSIFY} --device cuda --out new",
        1,
        "--device cuda: no CUDA device is available; expected cpu or auto",
        f"{CLASSIFY} --device auto --out new",
    ),
    "an unknown device": Mistake(
        f"{CLASSIFY} --device gpu --out new",
        1,
        "--device gpu is not a torch device: expected auto, cpu or cuda",
        f"{CLASSIFY} --device cpu --out new",
    ),
    "a preset of another kind": Mistake(
        f"{CLASSIFY} --preset gpt2 --out new",
        1,
        "this task trains a model of kind 'encoder', expected one of bert-base, albert-base",
        f"{CLASSIFY} --preset bert-base --out new",
    ),
    "typo in a recipe": Mistake(
        f"{CLASSIFY} --recipe bad.toml --out new",
        1,
        "bad.toml: unknown key 'warmpu' in the table [train]: did you mean 'warmup'?",
        f"{CLASSIFY} --recipe good.toml --out new",
    ),
    "no such recipe": Mistake(
        f"{CLASSIFY} --recipe goood.toml --out new",
        1,
        "goood.toml: no such file: did you mean good.toml?",
        f"{CLASSIFY} --recipe good.toml --out new",
    ),
    "other data for the same run": Mistake(
        f"train classification --data other.tsv {SHORT} --out my-classifier",
        1,
        "my-classifier.run was started with other data (data.data[0]). Use --continue to resume",
        f"train classification --data other.tsv {SHORT} --out my-classifier --restart",
    ),
    "other settings for the same run": Mistake(
        f"{CLASSIFY} --lr 0.5 --out my-classifier",
        1,
        "my-classifier.run was started with lr 0.005 (now 0.5). Use --continue to resume from its newest checkpoint",
        f"{CLASSIFY} --lr 0.5 --out my-classifier --continue",
    ),
    "eval with the data of another task": Mistake(
        "eval my-classifier --source test.en --target test.de",
        2,
        "--source is not an option of eval my-classifier: its data is given with --data PATH",
        "eval my-classifier --data test.tsv",
    ),
    "eval without data": Mistake(
        "eval my-classifier",
        2,
        "eval needs data: expected --data PATH ... after my-classifier",
        "eval my-classifier --data test.tsv",
    ),
    "eval with another column": Mistake(
        "eval my-classifier --data dev.tsv.gz",
        1,
        "name yours with --text-column",
        "eval my-classifier --data dev.tsv.gz --text-column sentence",
    ),
    "eval of the run instead of the model": Mistake(
        "eval my-classifier.run --data test.tsv", 1, "; use my-classifier", "eval my-classifier --data test.tsv"
    ),
    "no such model": Mistake(
        "run my-clasifier --input lines.txt",
        1,
        "my-clasifier: no such model folder: did you mean my-classifier?",
        "run my-classifier --input lines.txt",
    ),
    "the run instead of the model": Mistake(
        "run my-classifier.run --input lines.txt", 1, "; use my-classifier", "run my-classifier --input lines.txt"
    ),
    "a flag that the model does not have": Mistake(
        "run my-classifier --temperature 3 --input lines.txt",
        2,
        "--temperature has no effect: my-classifier is a classifier, which takes --n-best, --scores, --embed",
        "run my-classifier --scores --input lines.txt",
    ),
    "a value out of range": Mistake(
        "run my-model --temperature 1 --top-p 2 --input in.txt",
        2,
        "--top-p 2: expected more than 0 and at most 1",
        "run my-model --temperature 1 --top-p 0.9 --input in.txt",
    ),
    "no such input": Mistake(
        "run my-model --input in.text", 1, "in.text: no such file: did you mean in.txt?", "run my-model --input in.txt"
    ),
    "a format that cannot hold the model": Mistake(
        "convert my-model --to gguf --out my.gguf",
        1,
        "expected a decoder, for a GGUF file. This model can be written with --to hf",
        "convert my-model --to hf --out my-hf",
    ),
    "typo in a demo": Mistake("demo taging", 2, "did you mean 'tagging'?", "demo tagging --help"),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with the reader's files, and two models."""
    folder = tmp_path_factory.mktemp("newcomer")
    write_files(folder)
    write_lines(folder / "one.en", ["one"])
    write_lines(folder / "one.de", ["eins"])
    write_lines(folder / "one.tsv", ["text\tlabel", "hello\tgood"])
    write_lines(folder / "bare.tsv", labeled())
    write_lines(folder / "holes.tsv", ["text\tlabel", *labeled(), "\tgood"])
    write_lines(folder / "other.tsv", ["text\tlabel", *reversed(labeled())])
    for name in ("empty.en", "empty.de", "empty.tsv"):
        write_lines(folder / name, [])
    (folder / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)))
    (folder / "notes").mkdir()
    write_lines(folder / "notes" / "a.txt", ["the cat sleeps"] * 50)
    write_lines(folder / "bad.toml", ["[train]", "warmpu = 1"])
    write_lines(folder / "good.toml", ["[train]", "warmup = 1"])
    shell = Shell(folder)
    for command in (f"{TRANSLATE} --out my-model", f"{CLASSIFY} --out my-classifier"):
        assert shell.run(f"glassformer {command}").code == 0
    shutil.copytree(folder / "my-model", folder / "old-model")
    return folder


@pytest.fixture
def shell(trained, tmp_path):
    """A shell in a copy of that folder."""
    shutil.copytree(trained, tmp_path / "files")
    return Shell(tmp_path / "files")


@pytest.fixture(autouse=True)
def usual_signals():
    """Python's own handler, whatever this process was started with: a shell's background jobs ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def sentence_of(ended):
    """The one line that says what was wrong."""
    lines = [line for line in ended.err.splitlines() if line.startswith("glassformer: ")]
    assert len(lines) == 1, ended.err
    assert ended.err.splitlines()[-1] == lines[0]
    assert "Traceback" not in ended.err
    return lines[0]


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_sentence_whose_next_step_works(name, shell, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    mistake = MISTAKES[name]
    ended = shell.run(f"glassformer {mistake.command}")
    assert ended.code == mistake.code, ended.err
    assert ended.out == ""
    assert mistake.sentence in sentence_of(ended)
    after = shell.run(f"glassformer {mistake.next_step}")
    assert after.code == 0, after.err
    assert after.out


def test_swapped_files_are_no_error_and_the_right_order_is_scored(shell):
    """Nothing tells which language a file is in. The scores name the files in their order, so that it can be seen."""
    ended = shell.run("glassformer eval my-model --source test.de --target test.en")
    assert ended.code == 0
    assert "scored on 20 pairs from test.de, test.en" in ended.out
    assert "from test.en, test.de" in shell.run("glassformer eval my-model --source test.en --target test.de").out


@pytest.mark.parametrize(
    ("signals", "sentence"),
    [
        (1, "stopped by SIGINT; everything is saved; run the same command again to resume"),
        (2, "stopped by SIGINT without saving; run the same command again to resume from the newest checkpoint"),
    ],
    ids=["Ctrl-C", "Ctrl-C twice"],
)
def test_a_training_that_is_stopped_is_resumed_by_the_same_command(shell, monkeypatch, signals, sentence):
    command = f"glassformer {CLASSIFY} --updates 4 --save-every 2 --eval-every 2 --out new"
    told = Journal.update

    def update(journal, one):
        told(journal, one)
        for _ in range(signals if one.update == 3 else 0):
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "update", update)
        ended = shell.run(command)
    assert ended.code == 130
    assert sentence in sentence_of(ended)
    assert not (shell.folder / "new").exists()
    after = shell.run(command)
    assert after.code == 0
    assert f"resuming at update {3 if signals == 1 else 2}" in after.err


def test_a_full_disk_is_named_and_the_same_command_works_with_room(shell, monkeypatch):
    """A limit on the size of files stands in for a full disk."""
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # else Python keeps cut-off modules
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        ended = shell.run(f"glassformer {CLASSIFY} --out new")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert ended.code == 1
    assert "could not write " in sentence_of(ended)
    assert "ulimit -f" in ended.err
    assert shell.run(f"glassformer {CLASSIFY} --out new").code == 0


def test_a_file_that_may_not_be_read_is_named_with_the_command_that_allows_it(shell, monkeypatch):
    path = shell.folder / "reviews.tsv"
    path.chmod(0)
    may = os.access  # root may read every file
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda one, mode: os.stat(one).st_mode & 0o400 != 0 and may(one, mode))
        ended = shell.run(f"glassformer {CLASSIFY} --out new")
    assert ended.code == 1
    assert "reviews.tsv is not readable by this user: chmod u+r reviews.tsv makes it" in sentence_of(ended)
    path.chmod(0o600)
    assert shell.run(f"glassformer {CLASSIFY} --out new").code == 0


PYTHON_MISTAKES = {
    "a string as a number": (lambda: TrainConfig(lr="x"), "lr='x': expected a number", lambda: TrainConfig(lr=0.1)),
    "a value out of range": (
        lambda: TrainConfig(lr=-1),
        "lr=-1: expected a finite number above 0",
        lambda: TrainConfig(lr=0.1),
    ),
    "typo in a field": (
        lambda: TrainConfig(minuts=3),
        "TrainConfig has no field 'minuts': did you mean 'minutes'?",
        lambda: TrainConfig(minutes=3),
    ),
    "the data instead of the config": (
        lambda: Translation(PairData(source="train.en")),
        "Translation was given a PairData: expected a TranslationConfig",
        lambda: Translation(TranslationConfig(data=PairData(source="train.en"))),
    ),
    "typo in a preset": (
        lambda: preset("lama"),
        "unknown preset 'lama': did you mean 'llama'?",
        lambda: preset("llama"),
    ),
    "no such model": (
        lambda: Translator.from_folder("my-modle"),
        "my-modle: no such model folder: did you mean my-model?",
        lambda: Translator.from_folder("my-model"),
    ),
}


@pytest.mark.parametrize("name", PYTHON_MISTAKES)
def test_a_mistake_in_python_is_one_sentence_whose_next_step_works(name, trained, monkeypatch):
    monkeypatch.chdir(trained)
    wrong, sentence, right = PYTHON_MISTAKES[name]
    with pytest.raises((TypeError, ValueError, FileNotFoundError)) as caught:
        wrong()
    assert str(caught.value) == sentence
    assert right() is not None


def test_a_string_instead_of_a_list_is_one_text(trained):
    translator = Translator.from_folder(trained / "my-model")
    assert isinstance(translator.translate("one two"), str)
    assert translator.translate(["one two"]) == [translator.translate("one two")]
    assert PairData(source="train.en") == PairData(source=["train.en"])
