"""Translation: training from two text files, by Python and by the command line."""

import json
import random
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from glassformer.cli import main
from glassformer.metrics import score_translations
from glassformer.pipelines.translator import Translator
from glassformer.tasks.configs.small_models import small_encoder_decoder
from glassformer.tasks.translation import PairData, Translation, TranslationConfig
from glassformer.text import TokenizerConfig
from glassformer.training.journal import read_log
from glassformer.training.train_config import TrainConfig

ENGLISH = ("one", "two", "three", "four", "five", "six", "seven")
GERMAN = ("eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben")
WORDS = dict(zip(ENGLISH, GERMAN, strict=True))


def write_corpus(folder, count=600):
    """Write sentences of a language of seven words, translated word by word."""
    chance = random.Random(0)
    sources = [" ".join(chance.choices(list(WORDS), k=chance.randint(1, 4))) for _ in range(count)]
    (folder / "a.en").write_text("".join(f"{line}\n" for line in sources), encoding="utf-8")
    (folder / "a.de").write_text(
        "".join(" ".join(WORDS[word] for word in line.split()) + "\n" for line in sources), encoding="utf-8"
    )


def glassformer(*arguments, folder, **options):
    return subprocess.run(
        [sys.executable, "-m", "glassformer", *arguments],
        cwd=folder,
        capture_output=True,
        encoding="utf-8",
        check=False,
        **options,
    )


@pytest.fixture
def here(monkeypatch, capsys):
    """Call the command line in this process, which is faster than a new one."""

    def run(*arguments, folder):
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", ["glassformer", *arguments])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code
        told = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, code, told.out, told.err)

    return run


SMALL = "--vocab-size 300 --d-model 32 --n-heads 4 --d-ff 64 --n-encoder-layers 1 --n-decoder-layers 1 --dropout 0.0"
SMALL += " --embedding-dropout 0.0 --max-len 32 --max-tokens 512 --lr 0.01 --schedule cosine --warmup 20"
SMALL += " --device cpu --precision fp32"
TRAIN = ["train", "translation", "--source", "a.en", "--target", "a.de", *SMALL.split()]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("translation")
    write_corpus(folder)
    result = glassformer(*TRAIN, "--updates", "200", "--eval-every", "100", "--out", "model", folder=folder)
    assert result.returncode == 0, result.stderr
    return folder, result


def test_training_reports_its_progress_and_writes_a_complete_folder(trained):
    folder, result = trained
    assert result.stdout.startswith("wrote model: BLEU ")
    assert "validation after 200 updates" in result.stderr
    assert "parameters" in result.stderr
    assert {path.name for path in (folder / "model").iterdir()} == {
        "config.json",
        "model.safetensors",
        "task.json",
        "tokenizer.json",
        "generation_config.json",
        "README.md",
        "manifest.json",
    }
    log = [json.loads(line) for line in (folder / "model.run" / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [r["update"] for r in log if r["kind"] == "update"] == list(range(1, 201))
    assert [r["update"] for r in log if r["kind"] == "evaluation"] == [100, 200]
    assert list((folder / "model.run").glob("events.out.tfevents*"))
    assert "200 updates" in (folder / "model" / "README.md").read_text(encoding="utf-8")


def test_it_translates_held_out_sentences(trained):
    translator = Translator.from_folder(trained[0] / "model")
    chance = random.Random(1)
    sources = [" ".join(chance.choices(ENGLISH, k=chance.randint(1, 3))) for _ in range(100)]
    wanted = [" ".join(WORDS[word] for word in line.split()) for line in sources]
    for beam in (1, 4):
        answers = translator.translate(sources, beam=beam)
        assert sum(answer == right for answer, right in zip(answers, wanted, strict=True)) >= 90


def test_run_gives_one_line_for_each_line_and_keeps_blank_ones(trained):
    text = "one two\n\n  \nthree\nfour five"
    result = glassformer("run", "model", folder=trained[0], input=text)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "eins zwei\n\n\ndrei\nvier fünf\n"


def test_eval_and_info_describe_the_model(trained, here):
    files = ("--source", "a.en", "--target", "a.de", "--tokenized", "de")
    result = here("eval", "model", *files, folder=trained[0])
    assert result.returncode == 0, result.stderr
    assert "lang:de" in result.stdout
    assert re.fullmatch(r"scored on [\d,]+ pairs from a\.en, a\.de", result.stdout.splitlines()[-1])
    quantized = here("eval", "model", *files[:4], "--quantize", "int8", "--json", folder=trained[0])
    if "no compiler" not in quantized.stderr:
        assert json.loads(quantized.stdout)["greedy"]["bleu"] > 90
    assert "greedy    BLEU" in result.stdout
    assert "nrefs:1|case:mixed|eff:no|tok:13a" in result.stdout
    result = here("info", "model", folder=trained[0])
    assert "encoder-decoder" in result.stdout
    assert "d_model = 32" in result.stdout


def test_the_estimate_is_compared_with_the_actual_cost(trained):
    assert "200 updates: about " in trained[1].stderr
    assert "(estimated " in trained[1].stderr


def test_minutes_choose_the_number_of_updates_and_the_run_records_it(tmp_path, capsys):
    write_corpus(tmp_path)
    config = TranslationConfig(
        data=PairData(source=(tmp_path / "a.en",), target=(tmp_path / "a.de",)),
        model=replace(
            small_encoder_decoder(), vocab_size=300, d_model=16, d_ff=16, n_encoder_layers=1, n_decoder_layers=1
        ),
        tokenizer=TokenizerConfig(bpe_dropout=0.1, bpe_versions=3),
        train=TrainConfig(minutes=0.05, max_tokens=256),
    )
    Translation(config).train(tmp_path / "model")
    plan = json.loads((tmp_path / "model.run" / "run.json").read_text(encoding="utf-8"))["plan"]
    assert plan["warmup"] == min(config.train.warmup, plan["updates"] // 4), "few updates have a short warm-up"
    planned = plan["corrections"][-1][1] if plan["corrections"] else plan["updates"]
    done = max(entry.update for entry in read_log(tmp_path / "model.run"))
    assert planned == done >= 1
    Translation(config).train(tmp_path / "model")  # trained to the end already: the plan stands
    assert json.loads((tmp_path / "model.run" / "run.json").read_text(encoding="utf-8"))["plan"] == plan
    assert max(entry.update for entry in read_log(tmp_path / "model.run")) == done
    assert isinstance(Translator.from_folder(tmp_path / "model").translate("one two"), str)


@pytest.mark.full
def test_skipped_records_are_counted_in_a_note(tmp_path):
    write_corpus(tmp_path)
    for name, line in (("a.en", "\n"), ("a.de", "nichts\n")):
        (tmp_path / name).write_text((tmp_path / name).read_text(encoding="utf-8") + line, encoding="utf-8")
    result = glassformer(*TRAIN, "--on-bad", "skip", "--updates", "2", "--out", "model", folder=tmp_path)
    assert "skipped 1 bad record: 1 with empty source" in result.stderr


def test_errors_name_the_file_and_the_line(trained, here):
    folder = trained[0]
    (folder / "bad.de").write_bytes(b"eins\n\xff\n")
    (folder / "bad.en").write_text("one\ntwo\n", encoding="utf-8")
    result = here("train", "translation", "--source", "bad.en", "--target", "bad.de", "--out", "x", folder=folder)
    assert result.returncode == 1
    assert "\nglassformer: bad.de:2: not valid UTF-8" in result.stderr
    assert "Traceback" not in result.stderr
    assert here(*TRAIN, folder=folder).returncode == 2, "--out is missing"
    assert here("train", "cooking", folder=folder).returncode == 2
    assert "no such model folder" in here("info", "nowhere", folder=folder).stderr
    other = here(*TRAIN, "--updates", "7", "--out", "model", folder=folder)
    assert "model.run was started with updates 200 (now 7). Use --continue" in other.stderr


STOPPED = """
import os, runpy, signal
from glassformer.training.trainer import Trainer

update, made = Trainer._update, []

def update_and_be_stopped(self):
    made.append(1)
    if len(made) == 12:
        os.kill(os.getpid(), signal.SIGTERM)
    return update(self)

Trainer._update = update_and_be_stopped
runpy.run_module("glassformer", run_name="__main__", alter_sys=True)
"""


def test_a_signal_saves_a_checkpoint_and_the_same_command_resumes(tmp_path, here):
    write_corpus(tmp_path)
    command = [*TRAIN, "--updates", "20", "--eval-every", "10", "--out", "model"]
    stopped = subprocess.run(
        [sys.executable, "-c", STOPPED, *command], cwd=tmp_path, capture_output=True, encoding="utf-8", check=False
    )
    assert stopped.returncode == 143, stopped.stderr
    assert "run the same command again to resume" in stopped.stderr
    resumed = here(*command, folder=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert re.search(r"resuming at update 1\d", resumed.stderr)
    assert here(*command[:-1], "whole", folder=tmp_path).returncode == 0
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("model", "whole")]
    assert weights[0] == weights[1]


def test_scores_equal_sacrebleu():
    scores = score_translations(["the cat sat on the mat"], ["the cat sat on the mat"])
    assert scores["bleu"] == pytest.approx(100)
    assert scores["chrf"] == pytest.approx(100)
    assert score_translations(["The Cat sat on a mat"], ["the cat sat on the mat"], lowercase=True)["bleu"] > 20
    with pytest.raises(ValueError, match="2 translations and 1 references"):
        score_translations(["a", "b"], ["a"])
