"""Callbacks get each update, validation and save, change nothing, and may end a run that then resumes."""

import json
import random
import sys
from dataclasses import replace

import pytest
import torch

from glassformer.tasks.classification import Classification, ClassificationConfig, LabeledData
from glassformer.training.callbacks import EvaluationEvent, SaveEvent, StepEvent, StopTraining
from glassformer.training.stop_signals import StoppedAtOnceError


def config(folder, **train):
    draw = random.Random(0)
    words = ["one", "two", "three", "four"]
    rows = [" ".join(draw.choices(words, k=4)) for _ in range(80)]
    (folder / "a.tsv").write_text(
        "text\tlabel\n" + "".join(f"{row}\t{row.split()[0]}\n" for row in rows), encoding="utf-8"
    )
    usual = ClassificationConfig(data=LabeledData(data=(folder / "a.tsv",), valid=(folder / "a.tsv",)))
    values = {"updates": 6, "warmup": 2, "eval_every": 3, "save_every": 2, "max_tokens": 64, "device": "cpu", **train}
    return replace(
        usual,
        model=replace(usual.model, vocab_size=300, d_model=16, n_heads=2, d_ff=16, n_encoder_layers=1),
        train=replace(usual.train, precision="fp32", **values),
    )


def weights(folder):
    return (folder / "model.safetensors").read_bytes()


@pytest.fixture
def plain(tmp_path):
    """The weights of a run without callbacks."""
    Classification(config(tmp_path)).train(tmp_path / "plain")
    return weights(tmp_path / "plain")


def test_callbacks_get_all_events_in_order_and_do_not_change_the_result(tmp_path, plain):
    told = []

    def tell(event):
        told.append(event)
        torch.manual_seed(7)
        torch.rand(3)
        random.seed(1)
        if not isinstance(event, StepEvent):
            with pytest.raises(TypeError):
                event.scores["accuracy"] = 100.0

    scores = Classification(config(tmp_path)).train(tmp_path / "m", on_step=tell, on_evaluation=tell, on_save=tell)
    assert weights(tmp_path / "m") == plain
    steps = [event for event in told if isinstance(event, StepEvent)]
    assert [event.update for event in steps] == [1, 2, 3, 4, 5, 6]
    assert all(event.loss > 0 and event.gradient_norm > 0 and event.tokens > 0 for event in steps)
    assert steps[1].learning_rate == 1e-3, "the peak, after two updates of warm-up"
    assert [event.update for event in told if isinstance(event, EvaluationEvent)] == [3, 6]
    saves = [event for event in told if isinstance(event, SaveEvent)]
    assert [event.update for event in saves] == [2, 3, 4, 6, 6]
    assert [event.is_model for event in saves] == [False] * 4 + [True]
    assert saves[0].path.parent == (tmp_path / "m.run" / "checkpoints").resolve()
    assert told[-1] == SaveEvent(6, (tmp_path / "m").resolve(), True, scores.values)
    order = [type(event) for event in told if event.update == 3]
    assert order == [StepEvent, EvaluationEvent, SaveEvent]


@pytest.mark.parametrize(("name", "update"), [("on_step", 5), ("on_step", 3), ("on_evaluation", 3), ("on_save", 4)])
def test_an_exception_in_a_callback_ends_a_run_that_resumes_to_the_same_bits(tmp_path, plain, name, update):
    class TooBadError(Exception):
        pass

    def give_up(event):
        if event.update == update:
            raise TooBadError("enough")

    with pytest.raises(TooBadError, match="enough"):
        Classification(config(tmp_path)).train(tmp_path / "m", **{name: give_up})
    assert not (tmp_path / "m").exists()
    steps = []
    Classification(config(tmp_path)).train(tmp_path / "m", on_step=lambda event: steps.append(event.update))
    assert steps == list(range(update + 1, 7)), "no update was lost"
    assert weights(tmp_path / "m") == plain


@pytest.mark.parametrize("end", [sys.exit, lambda: (_ for _ in ()).throw(KeyboardInterrupt)], ids=["exit", "interrupt"])
def test_a_callback_that_exits_loses_no_update(tmp_path, plain, end):
    def give_up(event):
        if event.update == 5:
            end()

    with pytest.raises((SystemExit, KeyboardInterrupt)):
        Classification(config(tmp_path)).train(tmp_path / "m", on_step=give_up)
    steps = []
    Classification(config(tmp_path)).train(tmp_path / "m", on_step=lambda event: steps.append(event.update))
    assert steps == [6]
    assert weights(tmp_path / "m") == plain


def test_a_second_signal_during_a_callback_saves_nothing(tmp_path):
    def interrupted(event):
        if event.update == 1:
            raise StoppedAtOnceError(2)

    with pytest.raises(StoppedAtOnceError):
        Classification(config(tmp_path)).train(tmp_path / "m", on_step=interrupted)
    assert not list((tmp_path / "m.run" / "checkpoints").glob("*"))


@pytest.mark.parametrize("limit", [{}, {"minutes": 0.2, "max_updates": 100_000}], ids=["updates", "minutes"])
@pytest.mark.parametrize("name", ["on_step", "on_evaluation"])
def test_a_callback_ends_the_training_and_the_model_is_saved(tmp_path, capsys, name, limit):
    stopping = config(tmp_path, eval_every=2, **limit)

    def stop(event):
        if event.update >= 4:
            raise StopTraining

    told = []
    scores = Classification(stopping).train(tmp_path / "m", on_save=told.append, **{name: stop})
    assert told[-1].is_model
    assert told[-1].update == 4
    assert told[-1].scores == scores.values
    said = capsys.readouterr().err
    assert "a callback ended the training after 4 of" in said
    assert "fitted into --minutes" not in said
    steps = []
    Classification(stopping).train(tmp_path / "m", on_step=lambda event: steps.append(event.update))
    assert steps == [], "the run is complete"
    logged = [json.loads(line) for line in (tmp_path / "m.run" / "log.jsonl").read_text("utf-8").splitlines()]
    assert [entry["update"] for entry in logged if entry["kind"] == "evaluation"] == [2, 4]


def test_a_run_that_a_callback_ended_can_be_continued(tmp_path):
    def stop(event):
        if event.update == 4:
            raise StopTraining

    Classification(config(tmp_path)).train(tmp_path / "m", on_step=stop)
    steps = []
    more = {"accept_changes": True, "on_step": lambda event: steps.append(event.update)}
    Classification(config(tmp_path, updates=8)).train(tmp_path / "m", **more)
    assert steps == [5, 6, 7, 8]


def test_an_exception_after_the_model_was_saved_leaves_the_model(tmp_path, plain):
    def give_up(event):
        if event.is_model:
            raise ValueError("no room there")

    with pytest.raises(ValueError, match="no room there"):
        Classification(config(tmp_path)).train(tmp_path / "m", on_save=give_up)
    assert weights(tmp_path / "m") == plain
