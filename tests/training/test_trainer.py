"""The trainer: the same last bit however often it is stopped, and no step that ruins the weights."""

import errno
import hashlib
import itertools
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

from glassformer.data.batches import PairBatch
from glassformer.data.toy import PairTaskData
from glassformer.models import build_model, preset
from glassformer.nn import Dropout
from glassformer.tasks.rewriting import pair_loss
from glassformer.training.config import TrainConfig
from glassformer.training.schedules import share_of_peak
from glassformer.training.state import saved_positions
from glassformer.training.trainer import DivergedError, Interrupted, Trainer

CONFIG = TrainConfig(
    updates=9,
    accumulate=2,
    lr=1e-2,
    warmup=3,
    eval_every=3,
    save_every=2,
    keep_last=3,
    average_last=2,
    metric="loss",
    device="cpu",
    precision="fp32",
)


class Batches:
    def __getitem__(self, step):
        return next(PairTaskData("copy", 6, 2, 5, batch_size=4, seed=step).batches())


def make_trainer(folder, config=CONFIG, loss=None, **options):
    torch.manual_seed(0)
    model = build_model(preset("tiny-transformer-base", vocab_size=9, dropout=0.1))
    batches = Batches()

    def evaluate():
        batch = batches[10**6]
        logits = model(batch.source, batch.target_in, batch.source_mask, batch.target_mask)
        return {"loss": torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.target_out.flatten()).item()}

    return Trainer(
        model=model,
        config=config,
        batches=batches,
        loss=loss(model) if loss else partial(pair_loss, model, config),
        evaluate=evaluate,
        folder=folder,
        **options,
    )


def fingerprint(parameters):
    digest = hashlib.sha256()
    for name in sorted(parameters):
        digest.update(name.encode() + parameters[name].contiguous().numpy().tobytes())
    return digest.hexdigest()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    trainer = make_trainer(tmp_path_factory.mktemp("run") / "checkpoints")
    return fingerprint(trainer.run())


@pytest.mark.parametrize("stop_at", range(1, 19))
def test_a_run_stopped_at_any_batch_ends_with_the_same_bits(tmp_path, uninterrupted, stop_at):
    """Every second one is between two accumulated batches. SIGTERM is the process's own."""
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
    by_muon = replace(CONFIG, optimiser="muon", weight_decay=0.1)
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


def test_a_run_interrupted_again_and_again_ends_with_the_same_bits(tmp_path, uninterrupted):
    for _ in range(CONFIG.updates):
        trainer = make_trainer(tmp_path / "checkpoints", on_update=lambda _: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(Interrupted) as stopped:
            trainer.run()
        assert stopped.value.exit_code == 130
    assert fingerprint(make_trainer(tmp_path / "checkpoints").run()) == uninterrupted


KILLED = """
import os, sys
from pathlib import Path
import torch
sys.path.insert(0, {tests!r})
from training.test_trainer import make_trainer
import glassformer.checkpoint.safe_files as safe
import glassformer.training.state as state

# Die without a word inside a save: after so many of its file operations.
left = {operations}
def count(function):
    def wrapped(*arguments, **options):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), 9)
        return function(*arguments, **options)
    return wrapped

state.save_file = count(state.save_file)
safe.sha256 = count(safe.sha256)
os.fsync = count(os.fsync)
Path.rename = count(Path.rename)
torch.set_num_threads({threads})  # sums of another number of threads have other bits
make_trainer(Path({folder!r})).run()
"""


@pytest.mark.parametrize("operations", [0, 1, 5, 8, 9, 10, 11, 20])
def test_a_run_killed_inside_a_save_ends_with_the_same_bits(tmp_path, uninterrupted, operations):
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
    assert "passing over an unreadable checkpoint" in warnings[0]
    assert newest.name in warnings[0]


def test_a_full_disk_is_a_clear_error_and_loses_nothing(tmp_path, uninterrupted, monkeypatch):
    folder, calls = tmp_path / "checkpoints", []
    import glassformer.training.state as state

    plain = state.save_file

    def full(*arguments):
        calls.append(1)
        if len(calls) > 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        plain(*arguments)

    monkeypatch.setattr(state, "save_file", full)
    with pytest.raises(
        OSError, match=r"could not save .*No space left on device; the newest whole one is .*step-00000003"
    ):
        make_trainer(folder).run()
    monkeypatch.setattr(state, "save_file", plain)
    assert fingerprint(make_trainer(folder).run()) == uninterrupted


def test_accumulated_batches_equal_one_large_batch(tmp_path):
    """Token-weighted: batches of different lengths count by their tokens, not by their number."""
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
                module.chance = 0.0
        trainer.batches = batches
        trainer._update()
        gradients.append([p.grad for p in trainer.model.parameters()])
    for accumulated, whole in zip(*gradients, strict=True):
        torch.testing.assert_close(accumulated, whole, atol=1e-12, rtol=1e-9)


def spoiled(bad):
    """A loss that is NaN at these batches."""

    def make(model):
        plain, count = partial(pair_loss, model, CONFIG), iter(range(10**6))
        return lambda batch: plain(batch) * (math.nan if next(count) in bad else 1.0)

    return make


def test_a_bad_step_is_skipped_and_counted_and_the_schedule_waits(tmp_path):
    updates = []
    trainer = make_trainer(tmp_path / "a", loss=spoiled({4, 8}), on_update=updates.append)
    trainer.run()
    assert trainer.state.skipped == 2
    assert trainer.state.update == CONFIG.updates
    assert trainer.state.position == CONFIG.updates + 2
    assert all(p.isfinite().all() for p in trainer.model.parameters())
    assert updates[2].update == updates[1].update == 2
    assert updates[3].lr == updates[2].lr, "the skipped step's learning rate is tried again"


def test_five_bad_steps_in_a_row_stop_the_run_and_keep_the_last_good_checkpoint(tmp_path):
    trainer = make_trainer(tmp_path / "a", loss=spoiled(set(range(8, 100))))
    with pytest.raises(DivergedError, match=r"5 steps in a row .*the last good checkpoint is .*step-00000008"):
        trainer.run()
    assert trainer.state.update == 4


def test_only_the_newest_and_the_best_checkpoints_stay(tmp_path):
    trainer = make_trainer(
        tmp_path / "a", replace(CONFIG, updates=20, save_every=1, eval_every=5, keep_last=2, average_last=0)
    )
    trainer.run()
    positions = saved_positions(tmp_path / "a")
    best = trainer.best().position
    assert set(positions) == {19, 20, best}


def test_patience_ends_a_run_that_gets_no_better(tmp_path):
    trainer = make_trainer(tmp_path / "a", replace(CONFIG, updates=1000, patience=2, average_last=0))
    scores = iter([3.0, 2.0, 2.5, 2.5])
    trainer.evaluate = lambda: {"loss": next(scores)}
    trainer.run()
    assert trainer.state.update == 4 * CONFIG.eval_every
    assert trainer.best().scores == {"loss": 2.0}


@pytest.mark.parametrize("schedule", ["inverse_sqrt", "cosine", "linear", "constant"])
def test_schedules_rise_and_fall(schedule):
    shares = [share_of_peak(schedule, u, warmup=10, updates=100) for u in range(1, 101)]
    assert shares[:10] == pytest.approx([(u + 1) / 10 for u in range(10)])
    assert all(a >= b for a, b in itertools.pairwise(shares[10:]))
    last = {"inverse_sqrt": math.sqrt(0.1), "cosine": 0.0, "linear": 0.0, "constant": 1.0}[schedule]
    assert shares[-1] == pytest.approx(last, abs=1e-12)


@pytest.mark.parametrize(
    ("field", "value"), [("updates", 0), ("label_smoothing", 1.0), ("warmup", -1), ("average_last", 9)]
)
def test_wrong_settings_are_named(field, value):
    with pytest.raises(ValueError, match=f"{field}={value}"):
        TrainConfig(**{field: value})


@pytest.mark.parametrize("leak", ["shifted", "unmasked"])
def test_a_model_that_sees_its_answers_is_caught(tmp_path, leak):
    """A random target cannot be predicted: a loss far below its entropy means that the answer leaked in."""

    class Noise(Batches):
        def __getitem__(self, step):
            random = torch.Generator().manual_seed(step)
            symbols = torch.randint(3, 9, (32, 6), generator=random)
            begin = torch.ones(32, 1, dtype=torch.long)
            target_in = symbols if leak == "shifted" else torch.cat((begin, symbols[:, :-1]), 1)
            return PairBatch(torch.randint(3, 9, (32, 4), generator=random), target_in, symbols)

    def losses(leaky):
        # What cannot be learned is soon seen not to be, and to copy is soon learned.
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
