"""`--minutes` with a simulated clock: the command ends in time, and corrections are recorded and repeated."""

import itertools
import json
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from torch import nn

from glassformer.tasks import training_run as runs
from glassformer.tasks.training_run import train_run
from glassformer.training import estimate, journal
from glassformer.training.budget import POINTS, Costs, TimeBudget, updates_that_fit
from glassformer.training.gradients import Gradients
from glassformer.training.run_folder import RunFolder
from glassformer.training.train_config import TrainConfig

CONFIG = TrainConfig(
    minutes=2,
    lr=1e-2,
    warmup=20,
    schedule="linear",
    eval_every=50,
    save_every=50,
    metric="loss",
    device="cpu",
    precision="fp32",
)


class Rows(NamedTuple):
    """A batch of numbers."""

    values: torch.Tensor

    @property
    def n_target_tokens(self):
        return len(self.values)

    def to(self, device):
        return Rows(self.values.to(device))

    def slice_rows(self, begin, end):
        return Rows(self.values[begin:end])


class RowBatches:
    def n_rows(self, step):
        return 2

    def __getitem__(self, step):
        return Rows(torch.full((2, 4), (step % 7) / 7))


class Machine:
    """A simulated machine with given durations of start-up, updates, recordings, validations and final scores."""

    def __init__(
        self, monkeypatch, *, startup=5.0, pilot=1.0, update=None, validation=3.0, score=0.02, tests=400, recordings=()
    ):
        self.now = 0.0
        self.recordings = list(recordings)
        self.startup, self.pilot, self.validation, self.score = startup, pilot, validation, score
        self.update = update or (lambda number: 1.0)
        self.test = [*range(tests)]
        self.losses = self.validations = 0
        monkeypatch.setattr(Gradients, "add", self._recording_first(Gradients.add))
        monkeypatch.setattr("time.perf_counter", lambda: self.now)
        monkeypatch.setattr(journal, "_tensorboard", lambda folder: None)
        monkeypatch.setattr(estimate, "give_back_freed", lambda: None)  # it takes real time
        monkeypatch.setattr(runs, "score_samples", lambda *_: None)  # its time is not simulated

    def train(self, folder, config=CONFIG):
        """Run one training command and return the simulated seconds that it took."""
        began = self.now
        self.now += self.startup
        record = (
            json.loads((folder / "run.json").read_text(encoding="utf-8")) if (folder / "run.json").exists() else None
        )
        folder.mkdir(exist_ok=True)
        run = RunFolder(folder, record, "id")
        run.bind("toy", config, {}, accept_changes=True)
        torch.manual_seed(0)
        self.model = nn.Linear(4, 1)
        state = train_run(
            run,
            self.model,
            config,
            batches=RowBatches(),
            loss=lambda model: self._loss,
            evaluate=self._evaluate,
            flops=lambda batch: 1,
            notes=(),
            score=self._score,
            test=self.test,
            began=began,
        )
        self._score(self.test)
        self.state = state
        return self.now - began

    def _recording_first(self, add):
        """Return `add` preceded by the recording of the next step, as with CUDA graphs. The pilot records nothing."""

        def run(gradients, *arguments, **options):
            if self.losses >= 3 and self.recordings:
                seconds = self.recordings.pop(0)
                self.now += seconds
                gradients.recording_seconds += seconds
            return add(gradients, *arguments, **options)

        return run

    def _loss(self, batch):
        self.losses += 1
        full = self.pilot if self.losses <= 3 else self.update(self.losses - 3)
        self.now += full * len(batch.values) / 2
        return self.model(batch.values).square().sum()

    def _evaluate(self):
        self.validations += 1
        self.now += self.validation
        return {"loss": float(self.model(RowBatches()[5].values).square().sum())}

    def _score(self, examples):
        self.now += self.score * len(examples)


def plan_of(folder):
    return json.loads((folder / "run.json").read_text(encoding="utf-8"))["plan"]


def rates_of(folder):
    lines = map(json.loads, (folder / "log.jsonl").read_text(encoding="utf-8").splitlines())
    return {line["update"]: line["lr"] for line in lines if line["kind"] == "update"}


MACHINES = {
    "as the pilot says": {},
    "twice as slow as the pilot": {"update": lambda number: 2.0},
    "twice as fast as the pilot": {"pilot": 2.0},
    "slower and slower": {"update": lambda number: 0.5 + 0.02 * number},
    "another program begins halfway": {"update": lambda number: 1.0 if number < 40 else 2.5},
    "costly validations": {"validation": 20.0},
    "costly final scores": {"tests": 1500},
    "a slow start": {"startup": 50.0},
    "slow updates": {"pilot": 6.0, "update": lambda number: 5.0},
    "quick updates": {"pilot": 0.3, "update": lambda number: 0.35},
    "recordings": {"recordings": [3.0] * 9},
}


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("eval_every", [20, pytest.param(60, marks=pytest.mark.full), 100_000])
def test_the_whole_command_takes_the_given_minutes(tmp_path, monkeypatch, name, eval_every):
    machine = Machine(monkeypatch, **MACHINES[name])
    taken = machine.train(tmp_path / "a", replace(CONFIG, eval_every=eval_every, save_every=eval_every))
    assert taken == pytest.approx(120, rel=0.15)


@pytest.mark.parametrize("name", ["as the pilot says", "twice as slow as the pilot", "twice as fast as the pilot"])
def test_a_run_whose_batch_grows_takes_the_given_minutes(tmp_path, monkeypatch, name):
    machine = Machine(monkeypatch, **MACHINES[name])
    taken = machine.train(tmp_path / "a", replace(CONFIG, batch_ramp="0.5:0.4"))
    assert taken == pytest.approx(120, rel=0.15)
    plan = plan_of(tmp_path / "a")
    assert plan["corrections"]
    assert plan["ramp_updates"] == pytest.approx(0.4 * plan["updates"], abs=1), "corrections do not move the ramp"


def test_recordings_do_not_count_as_time_of_updates(tmp_path, monkeypatch):
    """Otherwise the plan would fall to a fraction after the first updates, most of which have new shapes."""
    machine = Machine(monkeypatch, recordings=[5.0] * 6)
    machine.train(tmp_path / "a")
    plan, state = plan_of(tmp_path / "a"), machine.state
    assert min(plan["updates"], *(end for _, end in plan["corrections"])) > 50
    assert state.seconds == pytest.approx(state.update)
    assert state.other_seconds == pytest.approx(30 + 3 * machine.validations, abs=1)


def test_a_run_makes_at_least_one_update_if_loading_takes_all_the_time(tmp_path, monkeypatch, capsys):
    machine = Machine(monkeypatch, startup=500.0)
    machine.train(tmp_path / "a")
    made = machine.state.update
    assert 1 <= made <= 3
    assert f"only {made} update" in (told := capsys.readouterr().err)
    assert "the 2 min of --minutes are over already: it took 8.3 min to start" in told
    assert "learned little: 8.3 min passed before the first update. Give it more minutes" in told


def test_runs_that_end_for_another_reason_do_not_ask_for_more_minutes(tmp_path, monkeypatch, capsys):
    Machine(monkeypatch).train(tmp_path / "a", replace(CONFIG, max_updates=20))
    Machine(monkeypatch).train(tmp_path / "b", replace(CONFIG, minutes=0, updates=20))
    Machine(monkeypatch).train(tmp_path / "c")
    told = capsys.readouterr().err
    assert "fitted into" not in told
    assert "over already" not in told


def test_a_run_of_fixed_updates_is_never_corrected(tmp_path, monkeypatch):
    machine = Machine(monkeypatch, update=lambda number: 7.0)
    machine.train(tmp_path / "a", replace(CONFIG, minutes=0, updates=40, eval_every=20, save_every=20))
    assert machine.state.update == 40
    assert plan_of(tmp_path / "a")["corrections"] == []
    assert plan_of(tmp_path / "a")["warmup"] == 10, "a default warm-up is fitted to the plan"
    assert machine.validations == 2


def test_corrections_come_at_fixed_fractions_of_the_plan_and_are_recorded(tmp_path, monkeypatch):
    machine = Machine(monkeypatch, update=lambda number: 2.0)
    machine.train(tmp_path / "a")
    plan = plan_of(tmp_path / "a")
    assert len(plan["corrections"]) == len(POINTS)
    end, last = plan["updates"], 0
    for share, (update, updates) in zip(POINTS, plan["corrections"], strict=True):
        assert share * end <= update <= share * end + 1 or update == last + 1
        end, last = updates, update
    assert machine.state.update == end


@pytest.mark.parametrize("slower", [3.0, 8.0])
def test_a_run_ends_in_time_on_a_machine_that_becomes_slower(tmp_path, monkeypatch, slower):
    """Fast updates at the start raise the planned number, so the next scheduled correction would come too late."""
    machine = Machine(monkeypatch, update=lambda number: 0.3 if 10 < number < 60 else 0.3 * slower)
    seconds = machine.train(tmp_path / "a", replace(CONFIG, minutes=5))
    assert seconds == pytest.approx(300, rel=0.15)


def test_only_half_of_a_gain_in_speed_is_used(tmp_path, monkeypatch):
    machine = Machine(monkeypatch, update=lambda number: 1.0 if number < 12 else 0.1)
    machine.train(tmp_path / "a", replace(CONFIG, minutes=5))
    plan = plan_of(tmp_path / "a")
    ends = [plan["updates"], *(end for _, end in plan["corrections"])]
    assert max(second / first for first, second in itertools.pairwise(ends)) < 5


def test_a_run_without_a_validation_gets_one_before_the_end(tmp_path, monkeypatch):
    machine = Machine(monkeypatch)
    machine.train(tmp_path / "a", replace(CONFIG, eval_every=100_000, save_every=100_000))
    assert machine.validations == 2
    costly = Machine(monkeypatch, validation=50.0, score=0.1)
    costly.train(tmp_path / "b", replace(CONFIG, eval_every=100_000, save_every=100_000))
    assert costly.validations == 1, "not where it would take much of the time"


def stop_after(machine, count):
    """Simulate a kill of the process after `count` updates, by an exception."""
    plain, seen = machine.update, [0]

    def update(number):
        seen[0] += 1
        if seen[0] > count:
            raise RuntimeError("killed")
        return plain(number)

    machine.update = update


def test_a_killed_run_repeats_its_recorded_corrections(tmp_path, monkeypatch):
    """The kill comes between two checkpoints, after corrections. The run resumes on a slower machine."""
    config = replace(CONFIG, eval_every=10, save_every=10, minutes=1.5)
    machine = Machine(monkeypatch, validation=0.5)
    stop_after(machine, 38)
    with pytest.raises(RuntimeError, match="killed"):
        machine.train(tmp_path / "a", config)
    before, rates = plan_of(tmp_path / "a"), rates_of(tmp_path / "a")
    assert [place for place, _ in before["corrections"] if place > 30], "one is newer than the checkpoint"
    (tmp_path / "a" / "log.jsonl").unlink()
    later = Machine(monkeypatch, validation=0.5, pilot=3.0, update=lambda number: 3.0)
    later.now = 3600.0
    later.train(tmp_path / "a", config)
    after = plan_of(tmp_path / "a")
    assert after["corrections"][: len(before["corrections"])] == before["corrections"]
    assert {key: value for key, value in after.items() if key != "corrections"} == {
        key: value for key, value in before.items() if key != "corrections"
    }
    again = rates_of(tmp_path / "a")
    assert {update: rate for update, rate in again.items() if update <= 38} == {
        update: rate for update, rate in rates.items() if update > 30
    }
    assert len(after["corrections"]) > len(before["corrections"])
    assert again[later.state.update] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(("pilot", "update"), [(4.0, 0.5), (2.0, 0.5), (0.5, 0.5), (0.25, 0.5)])
def test_a_fractional_warmup_follows_the_corrected_plan(tmp_path, monkeypatch, pilot, update):
    """The load of the machine changes after the pilot, whose measured speed is wrong by a factor of up to eight."""
    machine = Machine(monkeypatch, pilot=pilot, update=lambda number: update)
    machine.train(tmp_path / "a", replace(CONFIG, warmup=0.1))
    rates = rates_of(tmp_path / "a")
    peak = max(rates, key=rates.__getitem__)
    assert 0.05 <= peak / machine.state.update <= 0.15
    assert max(rates.values()) == pytest.approx(CONFIG.lr, rel=0.1)


@pytest.mark.parametrize("minutes", [0, 2])
def test_a_fractional_warmup_of_a_continued_run_counts_its_new_updates(tmp_path, monkeypatch, minutes):
    config = replace(CONFIG, minutes=0, updates=100, warmup=0.1)
    Machine(monkeypatch).train(tmp_path / "a", config)
    assert plan_of(tmp_path / "a")["warmup"] == 10
    Machine(monkeypatch).train(tmp_path / "a", replace(config, minutes=minutes, updates=300))
    plan = plan_of(tmp_path / "a")
    assert plan["updates"] > 150
    assert plan["warmup"] == round(0.1 * plan["updates"])


@pytest.mark.parametrize(("warmup", "batch_ramp"), [(20, ""), (0.1, ""), (20, "0.5:0.5")])
def test_the_same_corrections_give_the_same_bits(tmp_path, monkeypatch, warmup, batch_ramp):
    config = replace(CONFIG, eval_every=10, save_every=10, minutes=1.5, warmup=warmup, batch_ramp=batch_ramp)
    whole = Machine(monkeypatch, validation=0.5)
    whole.train(tmp_path / "whole", config)
    torn = Machine(monkeypatch, validation=0.5)
    # One update before the end, when all corrections are recorded.
    stop_after(torn, whole.state.update - 1)
    with pytest.raises(RuntimeError, match="killed"):
        torn.train(tmp_path / "torn", config)
    resumed = Machine(monkeypatch, validation=0.5, update=lambda number: 2.0)
    resumed.train(tmp_path / "torn", config)
    assert plan_of(tmp_path / "torn") == plan_of(tmp_path / "whole")
    assert torch.equal(resumed.model.weight, whole.model.weight)


def test_a_resumed_run_counts_training_and_its_own_start_but_not_the_pause(tmp_path, monkeypatch):
    config = replace(CONFIG, eval_every=10, save_every=10)
    machine = Machine(monkeypatch)
    stop_after(machine, 40)
    with pytest.raises(RuntimeError, match="killed"):
        machine.train(tmp_path / "a", config)
    later = Machine(monkeypatch)
    later.now = 100_000.0
    taken = later.train(tmp_path / "a", config)
    spent = 40 * 1.0 + 4 * 3.0
    assert taken == pytest.approx(120 - spent, abs=18)


def test_continue_with_minutes_adds_them(tmp_path, monkeypatch):
    config = replace(CONFIG, minutes=1)
    Machine(monkeypatch).train(tmp_path / "a", config)
    taken = Machine(monkeypatch).train(tmp_path / "a", replace(config, minutes=2))
    assert taken == pytest.approx(120, rel=0.15)
    assert plan_of(tmp_path / "a")["start"] > 10


def test_the_budget_includes_validations_saves_and_final_scores():
    config = TrainConfig(eval_every=10, save_every=10)
    assert updates_that_fit(100, Costs(update=1.0), config) == 100
    assert updates_that_fit(100, Costs(update=1.0, ending=20), config) == 80
    assert updates_that_fit(100, Costs(update=1.0, validation=9.0, save=1.0), config) == 50
    assert updates_that_fit(100, Costs(update=1.0, validation=10.0), replace(config, average_last=2)) == 40
    assert updates_that_fit(100, Costs(update=1.0, save=10.0), replace(config, eval_every=25, save_every=10)) == 40
    late = replace(config, eval_every=999, save_every=10, async_save="on")  # also in the middle: 5, 10, ... 65, and 66
    assert updates_that_fit(80, Costs(update=1.0, save=1.0), late) == 66
    assert updates_that_fit(100, Costs(update=1.0, validation=10.0), replace(config, eval_every=999)) == 90
    assert updates_that_fit(25, Costs(update=1.0, validation=10.0), config, position=5) == 5
    assert updates_that_fit(-5, Costs(update=1.0), config) == 1
    assert updates_that_fit(100, Costs(update=1.0), replace(config, max_updates=60)) == 60
    assert updates_that_fit(100, Costs(update=1.0), replace(config, max_updates=60), position=50) == 10
    assert updates_that_fit(100, Costs(update=1.0), replace(config, max_updates=600)) == 100
    assert updates_that_fit(0.5, Costs(update=0.0), config) > 10**6


def test_validation_memory_is_measured_on_the_longest_examples(monkeypatch):
    """The samples grow until one takes noticeable time."""
    now, seen = [0.0], []
    monkeypatch.setattr("time.process_time", lambda: now[0])

    def score(examples):
        seen.append(examples)
        now[0] += 0.015 * len(examples)

    model, test = nn.Linear(2, 1), ["x" * (n * 7 % 100) for n in range(100)]
    runs.score_samples(model, score, test)
    assert [len(sample) for sample in seen] == [2, 8, 32]
    assert [len(text) for text in seen[1]] == [99, 98, 97, 96, 95, 94, 93, 92]
    seen.clear()
    runs.score_samples(model, score, test[:5])
    assert [len(sample) for sample in seen] == [2, 5]
    seen.clear()
    runs.score_samples(model, score, ())
    assert not seen
    assert model.training


def test_the_budget_returns_the_remaining_time():
    now = [7.0]
    budget = TimeBudget(seconds=60, began=2.0, earlier=10.0, clock=lambda: now[0])
    assert budget.left() == 45
    now[0] = 100.0
    assert budget.left() == -48


def test_a_rehearsal_scales_the_time_of_an_even_sample(monkeypatch):
    now, seen = [0.0], []
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    def score(examples):
        seen.append(examples)
        now[0] += 0.5 * len(examples)

    model = nn.Linear(2, 1)
    assert runs.rehearse(model, score, range(1600)) == 800
    assert len(seen[0]) == 100
    assert seen[0][-1] > 1500
    assert runs.rehearse(model, score, range(20)) == 10
    assert runs.rehearse(model, score, range(3)) == 1.5
    assert runs.rehearse(model, score, ()) == 0.0

    def undefined(examples):
        now[0] += 1.0
        raise ValueError("expected two classes")

    assert runs.rehearse(model, undefined, range(3)) == 1.0, "a score that so few examples do not have"
    assert model.training
