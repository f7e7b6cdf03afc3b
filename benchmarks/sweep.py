"""Train with every combination of some options, each with the same amount of arithmetic (for docs/defaults.md).

    python benchmarks/sweep.py translation results.jsonl --units 1 3 9 --workers 14 \
        --set source=train.de target=train.en valid_source=val.de valid_target=val.en device=cuda \
        --vary max_tokens=512,1024 weight_decay=0.2,0.5

One unit is 2.9 TFLOP, about 100 seconds of training on two slow cores. Each run makes as many updates as fit into its
units, so a run on a GPU shows what a slower machine would reach. Options that are neither set nor varied are chosen as
by `glassformer train`. Each finished run is one line of the results, which are printed at the end, the best one first.
A second call does not repeat runs that are in the file. A run that fails is tried once more in a fresh process; if it
fails again, its line holds both errors.

Small models leave most of a GPU unused. With NVIDIA's multi-process service (`nvidia-cuda-mps-control -d` before this
command) 15 workers on an H200 were three times as fast.
"""

import argparse
import itertools
import json
import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from multiprocessing import connection
from pathlib import Path
from typing import Any

Job = dict[str, Any]


def jobs(task: str, units: list[float], fixed: list[str], varied: list[str]) -> Iterator[Job]:
    """Yield one training job for each number of units and each combination of the values of the varied options.

    `fixed` holds options as "NAME=VALUE", and `varied` as "NAME=VALUE,VALUE".
    """
    names = [option.partition("=")[0] for option in varied]
    values = [option.partition("=")[2].split(",") for option in varied]
    for size, combination in itertools.product(units, itertools.product(*values)):
        yield {"task": task, "units": size, "set": fixed, "vary": dict(zip(names, combination, strict=True))}


def run(job: Job) -> Job:
    """Train the model that a job describes, and return the job with its scores, or with its error, and its seconds."""
    began = time.perf_counter()
    try:
        with tempfile.TemporaryDirectory() as work:
            found = _train(job, Path(work))
    except Exception:
        found = {"error": traceback.format_exc()[-800:]}
    return {**job, **found, "seconds": round(time.perf_counter() - began, 1)}


def run_all(todo: Iterable[Job], workers: int, work: Callable[[Job], Job] = run) -> Iterator[Job]:
    """Call `work` with each job of `todo`, in `workers` processes, and yield the results as they arrive.

    A failed job is tried once more. A process in which a job failed is replaced by a new one, because the error may
    have left torch unusable there.
    """
    waiting, context = iter(todo), multiprocessing.get_context("spawn")
    idle: list[_Worker] = []
    busy: dict[Any, tuple[_Worker, Job]] = {}
    retries: list[Job] = []
    try:
        while True:
            while len(busy) < workers:
                job = retries.pop() if retries else next(waiting, None)
                if job is None:
                    break
                worker = idle.pop() if idle else _Worker(context, work)
                worker.pipe.send(job)
                busy[worker.pipe] = worker, job
            if not busy:
                return
            for pipe in connection.wait(list(busy)):
                worker, job = busy.pop(pipe)
                result = worker.receive(job)
                if "error" in result:
                    worker.stop()
                    if "first_error" not in job:
                        retries.append({**job, "first_error": result["error"]})
                        continue
                else:
                    idle.append(worker)
                yield result
    finally:
        for worker in [*idle, *(one for one, _ in busy.values())]:
            worker.stop()


class _Worker:
    """A child process of `run_all` that runs one job after the other. Jobs and results go through `pipe`."""

    def __init__(self, context: Any, work: Callable[[Job], Job]):
        self.pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, work), daemon=True)
        self._process.start()
        other.close()

    def receive(self, job: Job) -> Job:
        """Wait for the result of a job that was sent to the process. If the process ended, the result is an error."""
        try:
            result: Job = self.pipe.recv()
        except (EOFError, ConnectionError):
            self._process.join()
            result = {**job, "error": f"the process ended with code {self._process.exitcode}", "seconds": 0}
        return result

    def stop(self) -> None:
        self.pipe.close()
        self._process.terminate()
        self._process.join()


def _serve(pipe: Any, work: Callable[[Job], Job]) -> None:
    """Run the jobs that come through the pipe and send back the results, until the pipe is closed."""
    while True:
        try:
            job = pipe.recv()
        except EOFError:
            return
        pipe.send(work(job))


def _train(job: Job, work: Path) -> dict[str, Any]:
    from glassformer.cli.train import read_given
    from glassformer.tasks.configs.defaults import REFERENCE_FLOPS, TrainingBudget, choose_defaults, update_flops
    from glassformer.tasks.configs.task_options import make_config
    from glassformer.tasks.task_registry import config_named, task_named
    from glassformer.training.journal import read_log

    told = {**dict(option.split("=", 1) for option in job["set"]), **job["vary"]}
    flags = [_flag(f"{name}={value}") for name, value in told.items()]
    given, _ = read_given(job["task"], [*flags, "--out", "unused"])
    kind, found = config_named(job["task"]), task_named(job["task"])
    corpus = _corpus(job["task"], tuple(job["set"]))
    flops = job["units"] * REFERENCE_FLOPS
    chosen = choose_defaults(kind, {**given, "train.minutes": 1}, corpus, TrainingBudget(flops, 0, lambda config: 1.0))
    config = make_config(kind, {**chosen, **given, "train.minutes": 0})
    updates = max(20, round(flops / update_flops(config, corpus)))
    changes: dict[str, Any] = {"train.updates": updates, "train.eval_every": updates, "train.save_every": updates}
    if "warmup" not in told:
        changes["train.warmup"] = max(5, round(0.06 * updates))
    scores = found(make_config(kind, {**chosen, **given, **changes, "train.minutes": 0})).train(work / "m")
    log = [entry.values for entry in read_log(work / "m.run")]
    return {"updates": updates, "scores": dict(scores.values), "validation": log[-1] if log else {}}


@cache
def _corpus(task: str, fixed: tuple[str, ...]) -> Any:
    from glassformer.cli.train import read_given
    from glassformer.tasks.task_registry import task_named

    given, _ = read_given(task, [*map(_flag, fixed), "--out", "unused"])
    return task_named(task).with_chosen_defaults(given).corpus()


def _flag(option: str) -> str:
    """Return the option "NAME=VALUE" as the flag --NAME=VALUE, with hyphens in the name."""
    name, _, value = option.partition("=")
    return f"--{name.replace('_', '-')}={value}"


def main() -> None:
    """Run the jobs that the file of results does not have yet, then print all results, the best first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("results", type=Path)
    parser.add_argument("--units", type=float, nargs="+", default=[1.0])
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE")
    parser.add_argument("--vary", nargs="*", default=[], metavar="NAME=VALUE,VALUE")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no run after this time")
    parser.add_argument("--metric", default="", help="score to sort by; the first one by default")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    began = time.perf_counter()
    done = (
        [json.loads(line) for line in options.results.read_text(encoding="utf-8").splitlines()]
        if options.results.exists()
        else []
    )
    known = [{name: one[name] for name in ("task", "units", "set", "vary")} for one in done]
    todo = [job for job in jobs(options.task, options.units, options.set, options.vary) if job not in known]
    with options.results.open("a", encoding="utf-8") as stream:
        in_time = (job for job in todo if time.perf_counter() - began < options.seconds)
        for result in run_all(in_time, options.workers):
            done.append(result)
            stream.write(json.dumps(result) + "\n")
            stream.flush()
    for one in sorted(done, key=lambda one: (one["units"], -_score(one, options.metric))):
        scores = "  ".join(f"{name} {value:.4g}" for name, value in one.get("scores", {}).items())
        print(
            f"{one['units']:6g} units  {one.get('updates', 0):6} updates  {scores or one['error'][-99:]}  {one['vary']}"
        )


def _score(result: Job, metric: str) -> float:
    scores = result.get("scores", {})
    return float(scores.get(metric) or next(iter(scores.values()), float("-inf")))


if __name__ == "__main__":
    main()
