"""`glassformer train`: its options, its help, and mistakes that must not block the corrected command."""

import re
from pathlib import Path

import pytest

from glassformer.base.dataclass_flags import options_of
from glassformer.cli.flag_parser import UsageError
from glassformer.cli.train import read_given
from glassformer.tasks.configs.defaults import default_minutes
from glassformer.tasks.configs.task_options import AUTOMATIC
from glassformer.tasks.task_registry import TASKS, config_named

TINY = [
    "--updates",
    "2",
    "--d-model",
    "8",
    "--n-heads",
    "2",
    "--d-ff",
    "8",
    "--n-encoder-layers",
    "1",
    "--device",
    "cpu",
]
TINY += ["--vocab-size", "300", "--eval-every", "2"]


def test_read_given_returns_only_given_options():
    flags = ["--source", "a", "b", "--lr=0.5", "--no-qkv-bias", "--lowercase", "--max_len", "none", "--from", "x"]
    given, run = read_given("translation", ["--recipe", "r.toml", "--out", "m", "--continue", *flags])
    assert given == {
        "train.lr": 0.5,
        "data.source": (Path("a"), Path("b")),
        "model.qkv_bias": False,
        "tokenizer.lowercase": True,
        "model.max_len": None,
        "start_from": Path("x"),
    }
    assert run == {"out": Path("m"), "recipe": Path("r.toml"), "accept_changes": True}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--warmpu", "3"], "--warmpu is not an option of train translation: did you mean --warmup?"),
        (["--optimiser", "adam"], "--optimiser is not an option of train translation: did you mean --optimizer?"),
        (["--zzzzzz", "3"], "--zzzzzz is not an option of train translation: glassformer train translation --help-all"),
        (["-minutes", "3"], "-minutes is not an option of train translation: did you mean --minutes?"),
        (["--lr", "x"], "--lr x: expected a number"),
        (["--lr", "-1"], "--lr -1: expected a finite number above 0"),
        (["--lr"], "--lr has no value: expected X after it"),
        (["--source", "--lr", "1"], "--source has no value: expected PATH ... after it"),
        (["--d-model", "12.5"], "--d-model 12.5: expected a whole number"),
        (["--schedule", "cosin"], "--schedule cosin: expected one of inverse_sqrt, cosine, linear, constant (did you"),
        (["--gated", "maybe"], "'maybe' is not expected here: expected an option, such as --source PATH"),
        (["train.de"], "'train.de' is not expected here: expected an option, such as --source PATH"),
    ],
)
def test_a_wrong_flag_is_one_sentence_and_exit_code_2(call, arguments, message):
    code, out, err = call("train", "translation", "--out", "m", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"glassformer: {message}")
    assert err.count("\n") == 1


def test_a_misspelled_verb_or_task_gets_a_suggestion(call):
    assert call("trian")[::2] == (
        2,
        "glassformer: 'trian' is not a verb: did you mean 'train'? (glassformer --help lists them)\n",
    )
    code, _, err = call("train", "translatoin", "--out", "m")
    assert code == 2
    assert err.startswith("glassformer: 'translatoin' is not a task: did you mean 'translation'?")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[train]\nwarmpu = 3\n", "unknown key 'warmpu' in the table [train]: did you mean 'warmup'?"),
        ("lr = 3\n", "lr is in the wrong place: expected lr in the table [train]"),
        ("[model]\nlr = 3\n", "model.lr is in the wrong place: expected lr in the table [train]"),
        ("[model]\nhidden_size = 3\n", "unknown key 'hidden_size' in the table [model]: did you mean 'd_model'?"),
        ("[trian]\nlr = 3\n", "unknown table [trian]: did you mean 'train'?"),
        ("train = 3\n", "train=3: expected a table, [train]"),
        ("[train]\nlr = -1\n", "train.lr=-1: expected a finite number above 0"),
        ("[data]\nsource = 3\n", "data.source=3: expected a list of paths"),
    ],
)
def test_a_wrong_recipe_is_one_sentence(call, tmp_path, text, message):
    recipe = tmp_path / "r.toml"
    recipe.write_text(text, encoding="utf-8")
    code, _, err = call("train", "translation", "--recipe", recipe, "--out", tmp_path / "m")
    assert (code, err) == (1, f"glassformer: {recipe}: {message}\n")


def test_train_without_a_task_lists_the_tasks(call):
    code, out, err = call("train")
    assert (code, out) == (2, "")
    assert all(f"  {task} " in err for task in TASKS)
    assert call("train", "--help")[:2] == (0, call("help", "train")[1])


@pytest.mark.parametrize("task", TASKS)
def test_help_shows_few_options_and_help_all_every_one(call, task):
    code, out, _ = call("train", task, "--help")
    assert code == 0
    first = re.findall(r"^  (--\S+)", out, re.MULTILINE)
    assert 9 <= len(first) <= 12
    assert {"--out", "--minutes", "--from", "--device", "--recipe", "--continue"} <= set(first)
    needs_model = config_named(task).NEEDS_MODEL
    assert ("--size" in first) == (not needs_model)
    assert ("--from MODEL --data" in out.splitlines()[0]) == needs_model
    assert {f"--{name.replace('_', '-')}" for name in config_named(task).FIRST_OPTIONS} <= set(first)
    assert out == call("help", "train", task)[1] == call("train", task, "--lr", "1", "-h")[1]
    everything = call("train", task, "--help-all")[1]
    flags = re.findall(r"^  (--\S+)", everything, re.MULTILINE)
    assert len(flags) == len(set(flags))
    assert {flag.replace("[no-]", "") for flag in flags} >= {
        one.flag for one in options_of(config_named(task)).values()
    }


@pytest.mark.parametrize("task", TASKS)
def test_every_option_has_a_sentence_and_one_default(call, task):
    for option in options_of(config_named(task)).values():
        assert re.fullmatch(r"[A-Z].{15,}[.)]", option.about), f"{option.path}: {option.about!r}"
        assert not re.search(r"\. [A-Z]", option.about), f"{option.path} has two sentences"
    told = call("train", task, "--help-all")[1]
    for entry in re.split(r"\n  (?=--)", told)[1:]:
        assert entry.count("(default:") <= 1, entry
    assert "Attention\n" not in told
    assert "Model: attention:" in told


@pytest.mark.parametrize("task", TASKS)
def test_help_states_the_default_minutes_and_the_corpora(call, task):
    for told in (" ".join(call("train", task, flag)[1].split()) for flag in ("--help", "--help-all")):
        stated = re.search(r"--minutes X .*?\(default: (\d+), unless --updates is given\)", told)
        assert float(stated[1]) == default_minutes(config_named(task), {})
    told = " ".join(call("train", task, "--help")[1].split())
    corpora = options_of(config_named(task))["corpus"].about.partition(": ")[2]
    if corpora:
        assert f"--corpus NAME trains on a named corpus instead of files: {corpora}" in told
    else:
        assert "--corpus" not in told


def test_help_marks_options_whose_default_is_chosen(call, monkeypatch):
    monkeypatch.setattr("glassformer.tasks.configs.task_options.AUTOMATIC", frozenset({"train.lr"}))
    told = " ".join(call("train", "translation", "--help-all")[1].split())
    assert "Peak learning rate. (default: chosen for the data and the time) --schedule" in told
    assert {option.path for task in TASKS for option in options_of(config_named(task)).values()} >= AUTOMATIC


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--text-column", "review"], "review"),
        (["--label-column", "stars"], "stars"),
        (["--data", "reviewz.tsv"], "reviewz.tsv"),
        (["--corpus", "interface-language"], "did you mean 'interface-languages'"),
        (["--from", "nothing-there"], "nothing-there"),
        (["--device", "abacus"], "--device abacus is not a torch device: expected auto, cpu or cuda"),
        (["--device", "meta"], "--device meta cannot compute here: expected auto, cpu or cuda"),
    ],
)
def test_a_failed_first_attempt_does_not_block_the_corrected_one(call, tmp_path, reviews, change, message):
    command = ["train", "classification", "--out", tmp_path / "m", *TINY]
    data = ["--data", reviews]
    code, _, err = call(*command, *change, *(data if "--data" not in change else ()))
    assert code == 1
    assert message in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["reviews.tsv"]
    assert call(*command, *data)[0] == 0


def test_a_misspelled_metric_does_not_block_the_corrected_command(call, tmp_path, reviews):
    command = ["train", "classification", "--data", reviews, "--out", tmp_path / "m", *TINY]
    code, _, err = call(*command, "--metric", "acuracy")
    assert code == 1
    assert "metric='acuracy' is not a validation score: did you mean 'accuracy'?" in err
    assert call(*command, "--metric", "accuracy")[0] == 0


def test_restart_and_continue_contradict_each_other(call, tmp_path, reviews):
    command = ["train", "classification", "--data", reviews, "--out", tmp_path / "m", "--restart", "--continue"]
    code, _, err = call(*command)
    assert code == 2
    assert err == "glassformer: --restart discards the run and --continue keeps it: expected one of them\n"


def test_misaligned_pairs_do_not_block_the_corrected_command(call, tmp_path):
    source, target = tmp_path / "a.en", tmp_path / "a.de"
    source.write_text("".join(f"the house {n}\n" for n in range(60)), encoding="utf-8")
    target.write_text("".join(f"das Haus {n}\n" for n in range(59)), encoding="utf-8")
    command = ["train", "translation", "--source", source, "--target", target, "--out", tmp_path / "m"]
    command += [*TINY, "--n-decoder-layers", "1"]
    code, _, err = call(*command)
    assert code == 1
    assert "a.de" in err
    assert not (tmp_path / "m.run").exists()
    target.write_text("".join(f"das Haus {n}\n" for n in range(60)), encoding="utf-8")
    assert call(*command)[0] == 0


def test_other_settings_are_named_with_both_values_and_ways_out(call, tmp_path, reviews):
    command = ["train", "classification", "--data", reviews, "--out", tmp_path / "m", *TINY]
    assert call(*command)[0] == 0
    code, _, err = call(*command, "--lr", "0.25", "--warmup", "3")
    assert code == 1
    assert "lr 0.005 (now 0.25), warmup 0.06 (now 3)" in err
    assert all(word in err for word in ("--continue", "--restart", "another --out"))
    assert call(*command, "--lr", "0.25", "--continue", "--updates", "3")[0] == 0
    assert call(*command, "--restart")[0] == 0


def test_a_usage_error_is_a_value_error():
    with pytest.raises(UsageError, match="--out is missing"):
        read_given("translation", [])
