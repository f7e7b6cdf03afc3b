"""The command line with several processes: killed at random, resumed with another number, and given bad input."""

import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from glassformer.training.state import saved_positions
from training.launched import difference, environment, run_cases, torchrun

UPDATES, SAVE_EVERY = 40, 5
WORDS = ["red", "blue", "green", "one", "two", "three", "four", "five", "cat", "dog", "sun", "moon"]

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc"),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    lines = [" ".join(random.Random(n).choices(WORDS, k=2 + n % 7)) for n in range(500)]
    for name, text in (("source", lines), ("target", [line.upper() for line in lines])):
        (folder / f"{name}.txt").write_text("\n".join(text) + "\n", encoding="utf-8")
    return folder


def command(data, out, *options):
    files = ["--source", str(data / "source.txt"), "--target", str(data / "target.txt"), "--out", str(out)]
    size = ["--optimizer", "adam", "--dropout", "0", "--max-tokens", "200", "--device", "cpu"]
    size += [] if "--from" in options else ["--size", "tiny"]
    steps = ["--updates", str(UPDATES), "--save-every", str(SAVE_EVERY), "--eval-every", "20"]
    return ["-m", "glassformer", "train", "translation", *files, *size, *steps, *options]


def log_of(out):
    """The update numbers in the log of a run, in the order in which they were made, and the last loss of each."""
    path = out.with_name(f"{out.name}.run") / "log.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    records = [json.loads(line) for line in lines if line.endswith("}")]
    updates = [record for record in records if record["kind"] == "update"]
    return [one["update"] for one in updates], {one["update"]: one["loss"] for one in updates}


def validations_of(out):
    """The scores of each validation in the log of a run, by update."""
    lines = (out.with_name(f"{out.name}.run") / "log.jsonl").read_text(encoding="utf-8").splitlines()
    records = [record for record in map(json.loads, lines) if record.pop("kind") == "evaluation"]
    return {record.pop("update"): record for record in records}


def processes_of(out):
    """The processes whose command line names the folder `out`, by number."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = path.read_bytes().decode(errors="replace").split("\0")
            if str(out) in arguments and b"Z" not in (path.parent / "stat").read_bytes().rpartition(b")")[2][:3]:
                found[int(path.parent.name)] = arguments
        except OSError:
            continue
    return found


@pytest.fixture(scope="module")
def undisturbed(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed") / "model"
    subprocess.run([sys.executable, *command(data, out)], env=environment(), check=True, capture_output=True)
    return out


@pytest.mark.parametrize("seed", range(20))
def test_a_killed_process_costs_at_most_one_interval(data, undisturbed, tmp_path, seed):
    out, chance = tmp_path / "model", random.Random(seed)
    options = ["--devices", "2", "--max-restarts", "2", *(["--parallel", "shard=2"] if seed % 2 else [])]
    options += ["--async-save", "on"] if seed >= 10 else []
    run = subprocess.Popen([sys.executable, *command(data, out, *options)], env=environment(), stderr=subprocess.PIPE)
    kill_at, deadline = chance.randrange(1, UPDATES - 2), time.monotonic() + 300
    while len(log_of(out)[0]) < kill_at and run.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    children = [number for number, line in processes_of(out).items() if number != run.pid and "--devices" in line]
    killed_after = len(log_of(out)[0])
    os.kill(chance.choice(sorted(children)), signal.SIGKILL)
    _, errors = run.communicate(timeout=600)
    assert run.returncode == 0, errors
    made, losses = log_of(out)
    restart = next((n for n in range(1, len(made)) if made[n] <= made[n - 1]), None)
    lost = 0
    if restart is not None:
        lost = made[restart - 1] - made[restart] + 1
        assert lost <= SAVE_EVERY
        assert restart >= killed_after
    _, expected = log_of(undisturbed)
    assert losses.keys() == expected.keys()
    largest = max(abs(losses[n] / expected[n] - 1) for n in losses)
    print(f"{' '.join(options)}: {lost} updates lost, largest difference of a loss {largest:.1e}")
    assert largest < 1e-5
    found, scores = validations_of(out), validations_of(undisturbed)
    assert found.keys() == scores.keys()
    for update, values in found.items():
        assert values == pytest.approx(scores[update], rel=1e-4), "the processes share each validation"
    assert not processes_of(out), "a process is left"
    assert not [path for path in (tmp_path / "model.run" / "checkpoints").iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("seed", range(10))
def test_a_run_that_saves_in_the_background_survives_any_kill(data, tmp_path, seed):
    """Killed five times at random moments, each time it loses at most one interval, and it ends with the same bits."""
    out, chance, interval = tmp_path / "model", random.Random(seed), seed % 4 + 1
    often = ["--async-save", "on", "--save-every", str(interval), "--keep-last", "2"]
    command_line = [sys.executable, *command(data, out, *often)]
    for _ in range(5):
        run = subprocess.Popen(command_line, env=environment(), stderr=subprocess.PIPE)
        before = len(log_of(out)[0])
        deadline = time.monotonic() + 120
        while len(log_of(out)[0]) < before + 2 and run.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(chance.random() * 0.3)
        run.kill()
        run.communicate()
        made, _ = log_of(out)
        saved = saved_positions(out.with_name("model.run") / "checkpoints") or [0]
        assert not made or made[-1] - saved[-1] <= interval
    subprocess.run(command_line, env=environment(), check=True, capture_output=True)
    whole = tmp_path / "whole"
    subprocess.run([sys.executable, *command(data, whole)], env=environment(), check=True, capture_output=True)
    assert (out / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert not [path for path in (tmp_path / "model.run" / "checkpoints").iterdir() if path.name.startswith(".")]


def test_a_run_resumes_with_any_number_of_processes(tmp_path):
    """4 -> 2 -> 1 -> 3 processes, and a vocabulary that none of them divides."""
    shape = {"vocab_size": 5003, "n_kv_heads": 4}

    def case(folder, updates, layout):
        return {"task": "translation", "folder": str(folder), "model": shape, "train": train(updates, layout)}

    def train(updates, layout):
        return {"updates": updates, "parallel": layout}

    (whole,) = run_cases(tmp_path / "whole", [case(tmp_path / "a", 16, "")], 1)
    losses = []
    steps = [(4, 4, "shard=2,tensor=2"), (2, 8, "shard=2"), (1, 12, ""), (3, 16, "shard=3")]
    for number, updates, layout in steps:
        (part,) = run_cases(tmp_path / f"{number}", [case(tmp_path / "b", updates, layout)], number)
        losses += part["losses"]
    found = difference(whole, {**part, "losses": losses})
    print(f"4 -> 2 -> 1 -> 3 processes: largest difference {found:.1e}")
    assert found < 1e-9


def test_a_run_is_stopped_by_a_signal_and_resumes_in_one_process(data, undisturbed, tmp_path):
    out = tmp_path / "model"
    command_line = [sys.executable, *command(data, out, "--devices", "2")]
    run = subprocess.Popen(command_line, env=environment(), stderr=subprocess.PIPE)
    while len(log_of(out)[0]) < 7 and run.poll() is None:
        time.sleep(0.01)
    run.send_signal(signal.SIGTERM)
    _, errors = run.communicate(timeout=120)
    assert run.returncode == 143, errors
    assert not processes_of(out)
    subprocess.run([sys.executable, *command(data, out)], env=environment(), check=True, capture_output=True)
    made, _ = log_of(out)
    assert made == list(range(1, UPDATES + 1)), "no update is made twice"
    one, other = load_file(undisturbed / "model.safetensors"), load_file(out / "model.safetensors")
    assert all((one[name] - other[name]).abs().max() < 1e-3 for name in one if not name.endswith("k_proj.bias"))


def test_a_killed_launcher_leaves_no_processes(data, tmp_path):
    """Its processes save a checkpoint and end, as after SIGTERM."""
    out = tmp_path / "model"
    run = subprocess.Popen([sys.executable, *command(data, out, "--devices", "2")], env=environment())
    while len(log_of(out)[0]) < 7 and run.poll() is None:
        time.sleep(0.01)
    run.kill()
    run.communicate()
    deadline = time.monotonic() + 60
    while processes_of(out) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not processes_of(out)
    assert saved_positions(tmp_path / "model.run" / "checkpoints")[-1] == log_of(out)[0][-1], "no update is lost"


@pytest.mark.parametrize(("killed", "after"), [(0, 0), (1, 0), (0, 12), (1, 12)])
def test_several_launchers_restart_together(data, undisturbed, tmp_path, killed, after):
    """As on several machines. Each launcher counts its restarts itself, so the counts may differ."""
    out = tmp_path / "model"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    options = ["--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "3", "--rdzv-backend", "c10d"]
    options += ["--rdzv-endpoint", endpoint, "--rdzv-id", "test"]
    line = [sys.executable, "-m", "torch.distributed.run", *options, *command(data, out, "--parallel", "shard=2")]
    launchers = [subprocess.Popen(line, env=environment(), stderr=subprocess.PIPE) for _ in range(2)]
    victim = None
    while victim is None or len(log_of(out)[0]) < after:
        assert all(launcher.poll() is None for launcher in launchers)
        time.sleep(0.05)
        victim = next((number for number in processes_of(out) if rank_of(number) == killed), None)
    os.kill(victim, signal.SIGKILL)
    errors = [launcher.communicate(timeout=600)[1] for launcher in launchers]
    assert [launcher.returncode for launcher in launchers] == [0, 0], errors
    _, losses = log_of(out)
    assert losses == pytest.approx(log_of(undisturbed)[1], rel=1e-5)
    assert not processes_of(out)


def rank_of(number):
    """The rank of a process with this number; None if it has none or has ended."""
    try:
        variables = Path(f"/proc/{number}/environ").read_bytes().decode().split("\0")
    except OSError:
        return None
    return next((int(line.removeprefix("RANK=")) for line in variables if line.startswith("RANK=")), None)


def test_processes_that_lose_another_end_with_a_sentence(data, tmp_path):
    out = tmp_path / "model"
    command_line = [sys.executable, *command(data, out, "--devices", "2")]
    run = subprocess.Popen(command_line, env=environment(), stderr=subprocess.PIPE, text=True)
    while len(log_of(out)[0]) < 7 and run.poll() is None:
        time.sleep(0.01)
    second = next(number for number in processes_of(out) if rank_of(number) == 1)
    os.kill(second, signal.SIGKILL)
    _, errors = run.communicate(timeout=120)
    assert run.returncode == 137
    assert "Traceback" not in errors
    sentences = [line for line in errors.splitlines() if line.startswith("glassformer:")]
    assert sentences[-1] == "glassformer: process 1 of 2 was ended by signal 9"
    assert not processes_of(out)


def test_a_sharded_run_starts_from_a_trained_model_as_one_process_does(data, undisturbed, tmp_path):
    """`train --from`: each process reads its part of the weights."""
    losses = {}
    for layout in ("", "shard=2", "tensor=2"):
        out = tmp_path / f"model-{layout[:5]}"
        options = ["--from", str(undisturbed), "--updates", "5", *(["--parallel", layout] if layout else [])]
        devices = ["--devices", "2"] if layout else []
        subprocess.run(
            [sys.executable, *command(data, out, *options, *devices)],
            env=environment(),
            check=True,
            capture_output=True,
        )
        losses[layout] = log_of(out)[1]
    for layout in ("shard=2", "tensor=2"):
        assert losses[layout] == pytest.approx(losses[""], rel=1e-5)


def test_a_process_never_holds_the_whole_model(tmp_path):
    """The memory that 2 processes take at most to read their parts of a model of 412 MB, for use and for training."""
    program = Path(__file__).parents[2] / "benchmarks" / "many_devices.py"
    result = subprocess.run(
        [sys.executable, str(program), "load"], env=environment(), capture_output=True, text=True, check=True
    )
    print(result.stdout)
    whole = int(re.search(r"model of (\d+) MB", result.stdout)[1])
    peaks = [int(number) for number in re.findall(r"at most (\d+) MB", result.stdout)]
    assert len(peaks) == 4, result.stdout
    assert max(peaks) < 0.8 * whole


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_nobody_joins_ends_with_one_sentence(data, tmp_path, rank):
    out = tmp_path / "model"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": "2"}
    result = subprocess.run(
        [sys.executable, *command(data, out)],
        env={**environment(), **where},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    sentences = [line for line in result.stderr.splitlines() if line.startswith("glassformer:")]
    assert len(sentences) == 1, result.stderr
    assert re.search(r"127.0.0.1:\d+ within 40 s: expected all of them to be started", sentences[0])
    assert result.returncode == 1
    assert not list(tmp_path.glob("model*"))


STARTER = """#!/bin/bash
if [ "$RANK" = 1 ]; then set -- "${@//data-of-0/data-of-1}"; fi
exec PYTHON "$@"
"""
OLDER = """#!/bin/bash
if [ "$RANK" = 1 ]; then shift 2; exec PYTHON -c "
import sys, glassformer.base.version as v; v.__version__ = '0.0.1'
from glassformer.cli import main; main()" "$@"; fi
exec PYTHON "$@"
"""


@pytest.mark.parametrize(
    ("starter", "options", "code", "message"),
    [
        (STARTER, ["--parallel", "data=2,shard=2"], 2, "layout of 4 processes, but 2 were started"),
        (STARTER, ["--parallel", "tensor=2", "--n-heads", "1"], 2, "tensor=2: n_heads=1, expected a divisor"),
        (STARTER, ["other"], 1, "process 1 of 2 has other data: expected the same as process 0"),
        (STARTER, ["missing"], 1, "process 1 of 2: .*source.txt"),
        (STARTER, ["--preset", "nope"], 1, "unknown preset 'nope'"),
        (OLDER, [], 1, "process 1 runs glassformer 0.0.1, .*: expected glassformer"),
    ],
    ids=["layout", "heads", "other data", "no data", "no preset", "other version"],
)
def test_bad_input_ends_with_one_sentence(data, tmp_path, starter, options, code, message):
    first, second = tmp_path / "data-of-0", tmp_path / "data-of-1"
    shutil.copytree(data, first)
    if options != ["missing"]:
        shutil.copytree(data, second)
    if options == ["other"]:
        for name in ("source.txt", "target.txt"):
            lines = (second / name).read_text(encoding="utf-8").splitlines()
            (second / name).write_text("\n".join(lines[:-1]) + "\n", encoding="utf-8")
    program = tmp_path / "start.sh"
    program.write_text(starter.replace("PYTHON", sys.executable), encoding="utf-8")
    program.chmod(0o755)
    out = tmp_path / "model"
    flags = [] if options in (["other"], ["missing"]) else options
    launch = [*torchrun(2, "--no-python"), str(program), *command(first, out, *flags)]
    result = subprocess.run(launch, env=environment(), capture_output=True, text=True, timeout=300, check=False)
    sentences = [line for line in result.stderr.splitlines() if line.startswith("glassformer:")]
    assert len(sentences) == 1, result.stderr
    assert re.search(message, sentences[0])
    assert f"exitcode  : {code}" in result.stderr
    assert not list(tmp_path.glob("model*"))
