"""Defaults are chosen once for a run: for the speed of the machine, or for fine-tuning."""

import json
import time

import pytest

import glassformer
from glassformer.checkpoint import load_model
from glassformer.pipelines.language_model import LanguageModel
from glassformer.tasks.choose import choose, in_words
from glassformer.tasks.configs.defaults import (
    CorpusSize,
)
from glassformer.tasks.configs.task_options import make_config
from glassformer.tasks.task_registry import config_named
from pipelines.tiny_pipelines import make
from tasks.pretrained_models import save_decoder


def write_pairs(folder, count=120):
    (folder / "a.txt").write_text("".join(f"one {n} two\n" for n in range(count)), encoding="utf-8")
    (folder / "b.txt").write_text("".join(f"eins {n} zwei\n" for n in range(count)), encoding="utf-8")
    return {"source": folder / "a.txt", "target": folder / "b.txt"}


def test_a_resumed_run_keeps_what_it_chose(tmp_path, monkeypatch, capsys):
    files = write_pairs(tmp_path)
    options = {**files, "updates": 2, "size": "tiny", "d_model": 32, "vocab_size": 300, "device": "cpu"}
    steps = []
    glassformer.train("translation", out=tmp_path / "m", on_step=steps.append, **options)
    assert len(steps) == 2, "callbacks are called by glassformer.train too"
    told = capsys.readouterr().err
    assert "chosen for this data: --n-encoder-layers 1" in told
    assert "--d-model" not in told, "what was given was not chosen"
    kept = json.loads((tmp_path / "m.run" / "kept" / "defaults.json").read_text(encoding="utf-8"))
    monkeypatch.setattr("glassformer.tasks.train_task.choose", lambda *_, **__: pytest.fail("chosen again"))
    glassformer.train("translation", out=tmp_path / "m", **options)
    config = json.loads((tmp_path / "m" / "config.json").read_text(encoding="utf-8"))
    assert config["n_heads"] == kept["model.n_heads"]


def test_fine_tuning_keeps_the_architecture_and_lowers_the_learning_rate(tmp_path):
    kind = config_named("classification")
    config = make_config(kind, {"start_from": tmp_path / "theirs"})
    tuned = choose(config, {"train.minutes": 2}, CorpusSize(10, 100), size="auto", began=time.perf_counter())
    assert not any(name.startswith("model.") for name in tuned)
    assert tuned["train.optimizer"] == "adamw"
    assert "2 min: --optimizer adamw" in in_words(tuned, {"train.minutes": 2})


def test_a_run_on_a_busy_machine_keeps_the_number_of_threads_that_was_fastest(tmp_path, monkeypatch):
    import torch

    from glassformer.training import training_speed

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("glassformer.tasks.choose.fastest_threads", lambda *_: 1)
    lines = [f"{'not ' * (n % 2)}good {n}\t{n % 2}" for n in range(300)]
    (tmp_path / "a.tsv").write_text("\n".join(["text\tlabel", *lines]) + "\n", encoding="utf-8")
    given = {"data": [str(tmp_path / "a.tsv")], "minutes": 0.02, "d_model": 16, "vocab_size": 300}
    seen = []
    with training_speed.using_threads(2):
        glassformer.train(
            "classification", out=tmp_path / "m", **given, on_step=lambda _: seen.append(torch.get_num_threads())
        )
        assert torch.get_num_threads() == 2, "what the caller had is restored"
    assert set(seen) == {1}
    assert json.loads((tmp_path / "m.run" / "kept" / "defaults.json").read_text(encoding="utf-8"))["train.threads"] == 1


@pytest.mark.parametrize("task", ["chat", "preference", "language", "code"])
def test_the_context_of_fine_tuning_fits_the_model(task, tmp_path):
    save_decoder(tmp_path / "hf")  # which reads 128 tokens
    save_decoder(tmp_path / "long", max_position_embeddings=2000)

    def context(model, **given):
        config = make_config(config_named(task), {"start_from": tmp_path / model})
        found = choose(config, {"train.updates": 2, **given}, CorpusSize(10, 100), size="auto", began=0.0)
        return found["context"]

    assert (context("hf"), context("long")) == (128, 512)
    assert context("hf", context=200) == 200  # an option that was given is never changed


@pytest.mark.parametrize("task", ["language", "code"])
def test_the_context_of_a_model_trained_here_stays(task, tmp_path):
    make(LanguageModel).save(tmp_path / "m", "card")  # which reads 64 tokens
    config = make_config(config_named(task), {"start_from": tmp_path / "m"})
    found = choose(config, {"train.updates": 2}, CorpusSize(10, 100), size="auto", began=0.0)
    assert found["context"] == 64


@pytest.mark.parametrize(("task", "lr"), [("language", 3e-3), ("code", 3e-3), ("classification", 1e-3)])
def test_a_model_trained_here_is_not_trained_further_with_the_learning_rate_of_muon(task, lr, tmp_path):
    make(LanguageModel).save(tmp_path / "m", "card")
    config = make_config(config_named(task), {"start_from": tmp_path / "m"})
    for given in ({}, {"train.lr": 0.02}):
        found = choose(config, {"train.updates": 2, **given}, CorpusSize(10, 100), size="auto", began=0.0)
        assert found["train.optimizer"] == "adamw"
        assert found["train.lr"] == given.get("train.lr", lr)


def test_options_of_another_architecture_are_refused_beside_from(tmp_path):
    make(LanguageModel).save(tmp_path / "m", "card")
    width = load_model(tmp_path / "m").config.d_model
    config = make_config(config_named("language"), {"start_from": tmp_path / "m"})

    def choose_with(size="auto", **given):
        return choose(config, {"train.updates": 2, **given}, CorpusSize(10, 100), size=size, began=0.0)

    assert choose_with(**{"model.d_model": width, "model.vocab_size": 9999})["context"] == 64
    for name, value in (("d_model", 2 * width), ("dropout", 0.25), ("n_heads", 1)):
        with pytest.raises(ValueError, match=rf"{name}={value} has no effect with --from .* model has"):
            choose_with(**{f"model.{name}": value})
    with pytest.raises(ValueError, match="--size small has no effect with --from"):
        choose_with(size="small")


def test_options_that_do_not_change_a_grown_model_are_refused(tmp_path):
    make(LanguageModel).save(tmp_path / "m", "card")
    base = {"grow_from": tmp_path / "m"}

    def choose_with(size="auto", **given):
        config = make_config(config_named("language"), {**base, **given})
        return choose(config, {"train.updates": 2, **base, **given}, CorpusSize(10, 100), size=size, began=0.0)

    with pytest.raises(ValueError, match="--size small has no effect with --grow-from"):
        choose_with(size="small")
    with pytest.raises(ValueError, match=r"vocab_size=9999 has no effect with --grow-from .* whose tokenizer stays"):
        choose_with(**{"model.vocab_size": 9999})
    choose_with(**{"model.d_model": 2 * load_model(tmp_path / "m").config.d_model})


@pytest.mark.parametrize(("option", "flag"), [("start_from", "--from"), ("grow_from", "--grow-from")])
def test_a_tokenizer_beside_a_trained_model_is_refused(tmp_path, option, flag):
    make(LanguageModel).save(tmp_path / "m", "card")
    given = {option: tmp_path / "m", "tokenizer.tokenizer_file": "t.json"}
    config = make_config(config_named("language"), given)
    with pytest.raises(ValueError, match=f"--tokenizer-file t.json has no effect with {flag}"):
        choose(config, {"train.updates": 2, **given}, CorpusSize(10, 100), size="auto", began=0.0)
