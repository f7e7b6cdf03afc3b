"""Checkpoints that are written while training continues: the same bits, no lost error, at most one at a time."""

import threading
from dataclasses import replace

import pytest
import torch

from glassformer.training import state as state_module
from glassformer.training.background_save import BackgroundSave
from glassformer.training.state import checkpoint_path, load_newest, saved_positions
from glassformer.training.stop_signals import Interrupted, StoppedAtOnceError
from training.tiny_trainer import CONFIG, fingerprint, make_trainer

LATE = replace(CONFIG, async_save="on")


@pytest.fixture
def slow(monkeypatch):
    """Hold the writing of checkpoints until `slow` is set; `slow.writing` is set while one is being written."""
    event, writing, plain = threading.Event(), threading.Event(), state_module.write_text

    def write_text(*arguments):
        writing.set()
        assert event.wait(30)
        plain(*arguments)

    event.writing = writing
    monkeypatch.setattr(state_module, "write_text", write_text)
    yield event
    event.set()


def test_training_continues_while_a_checkpoint_is_written(tmp_path, slow):
    made = []

    def after(update):
        made.append(update.position)
        if update.position == LATE.save_every + 1:  # made after the first save was started
            assert slow.writing.wait(30)
            assert not saved_positions(tmp_path)
            slow.set()

    trainer = make_trainer(tmp_path, LATE, on_update=after)
    trainer.run()
    assert made == list(range(1, LATE.updates + 1))


def test_the_result_has_the_same_bits(tmp_path):
    saved = []
    late = make_trainer(tmp_path / "late", LATE, on_save=lambda path: saved.append(path.name))
    now = make_trainer(tmp_path / "now", replace(LATE, async_save="off"))
    assert fingerprint(late.run()) == fingerprint(now.run())
    assert saved_positions(tmp_path / "late") == saved_positions(tmp_path / "now")
    assert len(saved) == len(set(saved)) > 1
    assert all(path.name.startswith("step-") for path in (tmp_path / "late").iterdir())
    for position in saved_positions(tmp_path / "now"):
        one, other = (checkpoint_path(tmp_path / name, position) for name in ("late", "now"))
        assert (one / "optimizer.safetensors").read_bytes() == (other / "optimizer.safetensors").read_bytes()


def test_a_checkpoint_holds_the_values_of_the_moment_when_it_was_started(tmp_path, slow):
    trainer = make_trainer(tmp_path, LATE)
    trainer._update()
    trainer._start_save()
    before = fingerprint(dict(trainer.model.state_dict()))
    trainer._update()
    slow.set()
    trainer._saving.wait()
    again = make_trainer(tmp_path, LATE)
    state = load_newest(tmp_path, again.model, again.optimizer, pytest.fail)
    assert state.position == 1
    assert fingerprint(dict(again.model.state_dict())) == before


def test_a_stopped_run_has_written_everything(tmp_path):
    trainer = make_trainer(tmp_path, LATE)
    trainer.on_update = lambda update: update.position == 3 and trainer._signals.__setattr__("received", 15)
    with pytest.raises(Interrupted):
        trainer.run()
    assert saved_positions(tmp_path)[-1] == 3
    resumed = make_trainer(tmp_path, LATE)
    whole = make_trainer(tmp_path / "whole", LATE)
    assert fingerprint(resumed.run()) == fingerprint(whole.run())


def test_a_failed_save_ends_the_run_at_the_next_update(tmp_path, monkeypatch):
    def write_tensors(*arguments):
        raise OSError("the disk is full")

    monkeypatch.setattr(state_module, "write_tensors", write_tensors)
    made = []
    trainer = make_trainer(tmp_path, LATE, on_update=lambda update: made.append(update.position))
    with pytest.raises(OSError, match=r"the disk is full.*none was saved before it"):
        trainer.run()
    assert made[-1] < LATE.updates
    assert not list(tmp_path.iterdir())


def test_the_next_save_waits_for_the_previous_one():
    saving, order, gate = BackgroundSave(), [], threading.Event()
    saving.start(lambda: (gate.wait(30), order.append("first")), lambda: order.append("told"))
    saving.poll()
    assert not order
    gate.set()
    saving.start(lambda: order.append("second"), lambda: order.append("told again"))
    saving.wait()
    assert order == ["first", "told", "second", "told again"]
    saving.wait()
    assert len(order) == 4


def test_an_error_is_raised_once_and_not_by_a_poll():
    saving = BackgroundSave()
    saving.start(lambda: 1 / 0, lambda: pytest.fail("not written"))
    saving._thread.join()
    saving.poll()
    assert saving.has_failed
    with pytest.raises(ZeroDivisionError):
        saving.wait()
    assert not saving.has_failed
    with pytest.raises(ZeroDivisionError), saving:
        saving.start(lambda: 1 / 0, lambda: None)


@pytest.mark.parametrize(("error", "is_written"), [(KeyError, True), (StoppedAtOnceError, False)])
def test_a_run_that_fails_waits_for_its_last_checkpoint(error, is_written):
    """A second signal does not wait."""
    gate, written = threading.Event(), []
    if is_written:
        gate.set()

    def run():
        with BackgroundSave() as saving:
            saving.start(lambda: (gate.wait(30), written.append(1)), lambda: None)
            raise error(15)

    with pytest.raises(error):
        run()
    assert bool(written) == is_written
    gate.set()


def test_a_copy_is_made_where_the_model_may_change():
    one = torch.ones(3, requires_grad=True)
    copied = state_module.copy_to_host(one)
    assert copied.data_ptr() != one.data_ptr()
    assert not copied.requires_grad
