"""The trainer: bit-identical however often it is interrupted, and no update that breaks the weights."""

import errno
import math
import os
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from glassformer.checkpoint import model_folder
from glassformer.checkpoint.model_folder import WEIGHTS
from glassformer.data.batching.pair_batches import PairBatch
from glassformer.nn import Dropout
from glassformer.tasks.seq2seq_task import pair_loss
from glassformer.training.state import checkpoint_path, saved_positions
from glassformer.training.stop_signals import Interrupted
from glassformer.training.trainer import DivergedError
from training.tiny_trainer import CONFIG, Batches, fingerprint, make_trainer


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    trainer = make_trainer(tmp_path_factory.mktemp("run") / "checkpoints")
    return fingerprint(trainer.run())


@pytest.mark.parametrize(
    "stop_at", [pytest.param(n, marks=[] if n in (1, 2, 7, 8, 13, 18) else pytest.mark.full) for n in range(1, 19)]
)
def test_a_run_interrupted_at_any_batch_is_bit_identical(tmp_path, uninterrupted, stop_at):
    """Every second batch is in the middle of an accumulated update. The process sends SIGTERM to itself."""
    trainer, seen = make_trainer(tmp_path / "checkpoints"), []
    plain = trainer.loss

    def loss(batch):
        seen.append(1)
        if len(seen) == stop_at:
            os.kill(os.getpid(), signal.SIGTERM)
        return plain(batch)

    trainer.gradients.loss = loss
    with pytest.raises(Interrupted) as stopped:
        trainer.run()
    assert stopped.value.exit_code == 143
    assert fingerprint(make_trainer(tmp_path / "checkpoints").run()) == uninterrupted


def test_a_run_by_muon_resumes_with_its_momentum(tmp_path):
    by_muon = replace(CONFIG, optimizer="muon", weight_decay=0.1)
    whole = fingerprint(make_trainer(tmp_path / "whole", by_muon).run())
    trainer, seen = make_trainer(tmp_path / "parts", by_muon), []
    plain = trainer.loss

    def loss(batch):
        seen.append(1)
        if len(seen) == 7:
            os.kill(os.getpid(), signal.SIGTERM)
        return plain(batch)

    trainer.gradients.loss = loss
    with pytest.raises(Interrupted):
        trainer.run()
    assert fingerprint(make_trainer(tmp_path / "parts", by_muon).run()) == whole


def test_a_run_interrupted_many_times_is_bit_identical(tmp_path, uninterrupted):
    for _ in range(CONFIG.updates):
        trainer = make_trainer(tmp_path / "checkpoints", on_update=lambda _: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(Interrupted) as stopped:
            trainer.run()
        assert stopped.value.exit_code == 130
    assert fingerprint(make_trainer(tmp_path / "checkpoints").run()) == uninterrupted


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_run_whose_batch_grows_is_bit_identical_however_it_is_interrupted(tmp_path, accumulate):
    growing = replace(CONFIG, accumulate=accumulate, batch_ramp="0.25:0.7")
    rows: list[int] = []

    def watched(model):
        def loss(batch):
            rows.append(len(batch.source))
            return pair_loss(model, growing, batch)

        return loss

    whole = fingerprint(make_trainer(tmp_path / "whole", growing, watched).run())
    assert rows[0] == accumulate, "the first update has a quarter of the rows of a full one"
    assert rows[-accumulate:] == [4] * accumulate
    for _ in range(CONFIG.updates):
        trainer = make_trainer(tmp_path / "torn", growing, on_update=lambda _: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(Interrupted):
            trainer.run()
    assert fingerprint(make_trainer(tmp_path / "torn", growing).run()) == whole


KILLED = """
import os, sys
from pathlib import Path
import torch
sys.path.insert(0, {tests!r})
from training.tiny_trainer import make_trainer
import glassformer.checkpoint.safe_files as safe
from glassformer.checkpoint import model_folder

# Kill this process inside a save, after the given number of file operations.
left = {operations}
def count(function):
    def wrapped(*arguments, **options):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), 9)
        return function(*arguments, **options)
    return wrapped

model_folder.save_file = count(model_folder.save_file)
safe.sha256 = count(safe.sha256)
os.fsync = count(os.fsync)
Path.rename = count(Path.rename)
torch.set_num_threads({threads})  # the number of threads changes the last bits of sums
make_trainer(Path({folder!r})).run()
"""


@pytest.mark.parametrize("operations", [0, 1, 5, 8, 9, 10, 11, 20])
def test_a_run_killed_during_a_save_is_bit_identical(tmp_path, uninterrupted, operations, count):
    if operations not in count([1, 9], range(99)):
        pytest.skip("runs with --full")
    folder = tmp_path / "checkpoints"
    places = {"tests": str(Path(__file__).parents[1]), "folder": str(folder)}
    program = KILLED.format(**places, operations=operations, threads=torch.get_num_threads())
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == -9, result.stderr
    warnings = []
    assert fingerprint(make_trainer(folder, warn=warnings.append).run()) == uninterrupted
    assert not warnings, "a checkpoint was unreadable"


def test_an_unreadable_checkpoint_is_named_and_the_one_before_it_used(tmp_path, uninterrupted):
    folder = tmp_path / "checkpoints"
    with pytest.raises(Interrupted):
        make_trainer(folder, on_update=lambda u: os.kill(os.getpid(), signal.SIGINT) if u.position == 6 else None).run()
    newest = folder / f"step-{saved_positions(folder)[-1]:08d}"
    (newest / "model.safetensors").write_bytes(b"nonsense")
    warnings = []
    assert fingerprint(make_trainer(folder, warn=warnings.append).run()) == uninterrupted
    assert "skipping an unreadable checkpoint" in warnings[0]
    assert newest.name in warnings[0]


def test_a_full_disk_is_a_clear_error_and_loses_nothing(tmp_path, uninterrupted, monkeypatch):
    folder, calls = tmp_path / "checkpoints", []
    plain = model_folder.save_file

    def full(*arguments, **options):
        calls.append(1)
        if len(calls) > 4:
            raise SafetensorError(f"Error while serializing: I/O error: {os.strerror(errno.ENOSPC)} (os error 28)")
        plain(*arguments, **options)

    monkeypatch.setattr(model_folder, "save_file", full)
    with pytest.raises(
        OSError,
        match=r"could not write .*step-00000004/model.safetensors: No space left on device. Free some space .*"
        r"the newest complete one is .*step-00000003",
    ):
        make_trainer(folder).run()
    monkeypatch.setattr(model_folder, "save_file", plain)
    assert fingerprint(make_trainer(folder).run()) == uninterrupted


def test_accumulated_batches_equal_one_large_batch(tmp_path):
    """Each batch is weighted by its number of tokens."""
    config = replace(CONFIG, updates=1, clip=0.0)

    class OneLarge(Batches):
        def __getitem__(self, step):
            parts = [super(OneLarge, self).__getitem__(2 * step + i) for i in range(2)]
            width = max(part.source.shape[1] for part in parts)
            pad = torch.nn.functional.pad
            columns = zip(*((pad(x, (0, width + 1 - x.shape[1])) for x in part) for part in parts), strict=True)
            return PairBatch(*(torch.cat(column) for column in columns))

    gradients = []
    for batches, accumulate in ((Batches(), 2), (OneLarge(), 1)):
        trainer = make_trainer(tmp_path / str(accumulate), replace(config, accumulate=accumulate))
        trainer.model.double()
        for module in trainer.model.modules():
            if isinstance(module, Dropout):
                module.p = 0.0
        trainer.batches = batches
        trainer._update()
        gradients.append([p.grad for p in trainer.model.parameters()])
    for accumulated, whole in zip(*gradients, strict=True):
        torch.testing.assert_close(accumulated, whole, atol=1e-12, rtol=1e-9)


def spoiled(bad):
    """Return a maker of a loss that is NaN at these batches."""

    def make(model):
        plain, count = partial(pair_loss, model, CONFIG), iter(range(10**6))
        return lambda batch: plain(batch) * (math.nan if next(count) in bad else 1.0)

    return make


def test_a_step_with_nan_gradients_is_skipped_and_does_not_advance_the_schedule(tmp_path):
    updates = []
    trainer = make_trainer(tmp_path / "a", loss=spoiled({4, 8}), on_update=updates.append)
    trainer.run()
    assert trainer.state.skipped == 2
    assert trainer.state.update == CONFIG.updates
    assert trainer.state.position == CONFIG.updates + 2
    assert all(p.isfinite().all() for p in trainer.model.parameters())
    assert updates[2].update == updates[1].update == 2
    assert updates[3].lr == updates[2].lr, "the skipped step's learning rate is tried again"


def test_five_nan_steps_in_a_row_stop_the_run_and_keep_the_last_checkpoint(tmp_path):
    trainer = make_trainer(tmp_path / "a", loss=spoiled(set(range(8, 100))))
    with pytest.raises(DivergedError, match=r"5 steps in a row .*the newest complete one is .*step-00000008"):
        trainer.run()
    assert trainer.state.update == 4


def test_only_the_newest_and_the_best_checkpoints_are_kept(tmp_path):
    trainer = make_trainer(
        tmp_path / "a", replace(CONFIG, updates=20, save_every=1, eval_every=5, keep_last=2, average_last=0)
    )
    trainer.run()
    positions = saved_positions(tmp_path / "a")
    best = trainer.best().position
    assert set(positions) == {19, 20, best}


def test_patience_ends_a_run_without_improvement(tmp_path):
    trainer = make_trainer(tmp_path / "a", replace(CONFIG, updates=1000, patience=2, average_last=0))
    scores = iter([3.0, 2.0, 2.5, 2.5])
    trainer.evaluate = lambda: {"loss": next(scores)}
    trainer.run()
    assert trainer.state.update == 4 * CONFIG.eval_every
    assert trainer.best().scores == {"loss": 2.0}


@pytest.mark.parametrize("leak", ["shifted", pytest.param("unmasked", marks=pytest.mark.full)])
def test_a_model_that_sees_its_targets_is_detected(tmp_path, leak):
    """A random target cannot be predicted, so a loss far below its entropy shows that the model sees the target."""

    class Noise(Batches):
        def __getitem__(self, step):
            random = torch.Generator().manual_seed(step)
            symbols = torch.randint(3, 9, (32, 6), generator=random)
            begin = torch.ones(32, 1, dtype=torch.long)
            target_in = symbols if leak == "shifted" else torch.cat((begin, symbols[:, :-1]), 1)
            return PairBatch(torch.randint(3, 9, (32, 4), generator=random), target_in, symbols)

    def losses(leaky):
        # 100 updates show that nothing is learned, or that the shifted target is copied. Attending to it takes longer.
        updates = 500 if leaky and leak == "unmasked" else 100
        config = replace(CONFIG, updates=updates, accumulate=1, eval_every=600, save_every=600, label_smoothing=0.0)
        seen = []
        trainer = make_trainer(tmp_path / f"{leak}{leaky}", config, on_update=lambda u: seen.append(u.loss))
        trainer.batches = Noise()
        if leaky and leak == "unmasked":
            prepare_target = trainer.model._prepare_target

            def without_causal(*arguments):
                inputs = prepare_target(*arguments)
                return inputs._replace(mask=replace(inputs.mask, causal=False))

            trainer.model._prepare_target = without_causal
        if not leaky and leak == "shifted":
            original = Noise.__getitem__
            begin = torch.ones(32, 1, dtype=torch.long)

            class Right(Noise):
                def __getitem__(self, step):
                    batch = original(self, step)
                    return batch._replace(target_in=torch.cat((begin, batch.target_out[:, :-1]), 1))

            trainer.batches = Right()
        trainer.run()
        return sum(seen[-10:]) / 10

    entropy = math.log(6)
    assert losses(leaky=False) > 0.95 * entropy
    assert losses(leaky=True) < 0.8 * entropy


def test_a_validation_that_is_nan_is_never_the_best(tmp_path):
    config = replace(CONFIG, updates=30, patience=3, average_last=0)
    trainer = make_trainer(tmp_path / "a", config)
    scores = iter([math.nan, 3.0, 2.0, math.nan, 1.0, *[0.5] * 20])
    trainer.evaluate = lambda: {"loss": next(scores)}
    trainer.run()
    assert trainer.best().scores == {"loss": 0.5}
    resumed = make_trainer(tmp_path / "a", config)
    resumed.run()
    assert math.isnan(resumed.state.evaluations[0].scores["loss"]), "the checkpoint stores the NaN"


@pytest.mark.parametrize("what", ["weights", "moments"])
def test_a_checkpoint_never_holds_a_nan_or_an_infinity(tmp_path, what):
    trainer = make_trainer(tmp_path / "a")

    def spoil(update):
        if update.position == 3:
            parameter = next(trainer.model.parameters())
            target = parameter.data if what == "weights" else trainer.optimizer.state[parameter]["exp_avg"]
            target.view(-1)[0] = math.inf

    trainer.on_update = spoil
    wanted = r"NaN or an infinity at update 3; the newest complete one is .*step-00000002"
    with pytest.raises(DivergedError, match=wanted):
        trainer.run()
    assert saved_positions(tmp_path / "a") == [2]


def test_a_diverged_run_saves_no_checkpoint_of_broken_weights(tmp_path):
    trainer = make_trainer(tmp_path / "a", replace(CONFIG, lr=1e38, warmup=0, save_every=1, eval_every=100))
    with pytest.raises(DivergedError, match="diverged"):
        trainer.run()
    for position in saved_positions(tmp_path / "a"):
        assert all(v.isfinite().all() for v in load_file(checkpoint_path(tmp_path / "a", position) / WEIGHTS).values())


def test_fp16_overflows_lower_the_loss_scale_and_do_not_count_as_divergence(tmp_path, monkeypatch):
    """The gradients overflow until the scale is 2^6; later the scale doubles again."""
    monkeypatch.setattr("glassformer.training.trainer.SCALE_GROWTH", 4)
    trainer = make_trainer(tmp_path / "a", replace(CONFIG, accumulate=1, updates=6))
    trainer.precision, scales = "fp16", []
    trainer.gradients.autocast = lambda: torch.autocast("cpu", enabled=False)
    plain = trainer.gradients.add

    def add(batch, *, divisor, scale):
        scales.append(scale)
        loss = plain(batch, divisor=divisor, scale=scale)
        return loss if scale <= 2**6 else math.inf

    trainer.gradients.add = add
    trainer.run()
    assert scales == [2.0**n for n in range(16, 5, -1)] + [2.0**6] * 3 + [2.0**7, 2.0**6, 2.0**6]
    assert (trainer.state.update, trainer.state.bad_in_a_row) == (6, 0)


def test_a_second_sigterm_stops_at_once_with_its_own_exit_code(tmp_path):
    def stop_twice(update):
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt) as stopped:
        make_trainer(tmp_path / "a", on_update=stop_twice).run()
    assert stopped.value.exit_code == 143


def stopped_at(folder, position, **options):
    """Train until a signal stops the run at this position."""

    def stop(update):
        if update.position == position:
            os.kill(os.getpid(), signal.SIGINT)

    trainer = make_trainer(folder, on_update=stop, **options)
    with pytest.raises(Interrupted):
        trainer.run()
    return trainer


def test_a_saved_position_is_not_saved_again(tmp_path):
    """A signal saves before the validation that is due there. The resumed run validates and keeps the checkpoint."""
    stopped_at(tmp_path / "a", 3)
    before = (tmp_path / "a" / "step-00000003").stat().st_ino
    trainer = stopped_at(tmp_path / "a", 4)
    assert [evaluation.position for evaluation in trainer.state.evaluations] == [3]
    assert (tmp_path / "a" / "step-00000003").stat().st_ino == before


def test_a_damaged_checkpoint_is_replaced_when_its_position_is_reached_again(tmp_path, uninterrupted):
    stopped_at(tmp_path / "a", 4)
    (tmp_path / "a" / "step-00000004" / "state.json").write_text("{}", encoding="utf-8")
    assert fingerprint(make_trainer(tmp_path / "a", warn=lambda _: None).run()) == uninterrupted
