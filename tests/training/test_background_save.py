"""Checkpoints that are written while training continues: the same bits, no lost error, at most one at a time."""

import threading
from dataclasses import replace

import pytest
import torch

from glassformer.training import state as state_module
from glassformer.training.background_save import BackgroundSave, is_save_due, saves_in_background
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
        if update.position == LATE.save_every // 2 + 1:  # made after the first save was started
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


@pytest.mark.parametrize(
    ("every", "wanted", "positions"),
    [
        (4, "off", [4, 8, 12]),
        (4, "on", [2, 4, 6, 8, 10, 12]),
        (5, "on", [2, 5, 7, 10, 12]),
        (2, "on", list(range(1, 13))),
        (1, "on", list(range(1, 13))),
    ],
)
def test_a_run_that_saves_in_a_thread_saves_in_the_middle_too(every, wanted, positions):
    config, cpu = replace(LATE, save_every=every, async_save=wanted), torch.device("cpu")
    assert [position for position in range(13) if is_save_due(config, cpu, position)] == positions
    assert saves_in_background(config, cpu) == (wanted == "on" and every > 1)
    assert saves_in_background(replace(config, async_save="auto"), torch.device("cuda")) == (every > 1)


class SlowestSave(BackgroundSave):
    """Saves that end at the last moment that is allowed: when the next one begins, or never if the run is killed."""

    def start(self, write, then, *, in_thread=True):
        self.wait()
        self._work = (write, then)
        if not in_thread:
            self.wait()

    def wait(self):
        for work in self.__dict__.pop("_work", ()):
            work()

    poll = __enter__ = lambda self: self

    def __exit__(self, kind, error, trace):
        if error is None:
            self.wait()


class KilledError(Exception):
    pass


def check_a_kill(folder, config, position, expected):
    """A run that is killed after `position` updates has lost at most one interval, and resumes to the same bits."""

    def kill(update):
        if update.position == position:
            raise KilledError

    trainer = make_trainer(folder, config, on_update=kill)
    trainer._saving = SlowestSave()
    with pytest.raises(KilledError):
        trainer.run()
    newest = (saved_positions(folder) or [0])[-1]
    assert position - newest <= config.save_every
    resumed = make_trainer(folder, config)
    assert fingerprint(resumed.run()) == expected
    assert len(saved_positions(folder)) <= config.keep_last + 2, "those in the middle are removed"


def test_a_kill_costs_at_most_one_interval_however_slow_the_disk(tmp_path):
    config = replace(LATE, eval_every=100, updates=6, accumulate=1, average_last=0)
    expected = fingerprint(make_trainer(tmp_path / "whole", config).run())
    for every, position in ((1, 2), (3, 5)):
        check_a_kill(tmp_path / f"{every}", replace(config, save_every=every), position, expected)


@pytest.mark.full
@pytest.mark.parametrize("every", range(1, 7))
@pytest.mark.parametrize("eval_every", [4, 100])
def test_a_kill_at_any_update_costs_at_most_one_interval(tmp_path, every, eval_every):
    config = replace(LATE, save_every=every, eval_every=eval_every, updates=14, accumulate=1)
    expected = fingerprint(make_trainer(tmp_path / "whole", config).run())
    for position in range(1, 15):
        check_a_kill(tmp_path / f"{position}", config, position, expected)


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
