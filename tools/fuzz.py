"""Fuzz the loading of models: damage small models of every format thousands of times and load them (`make fuzz`).

A case is one damaged model. It must load, or end with a ValueError or an OSError, within a second and little memory. An
error of loading must name the file or its folder, and no message may have more than 2,000 characters. Cases run in a
separate process, so that a hang or a crash is noticed too. `--only CASE` repeats one case and shows its traceback.
"""

import argparse
import collections
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from checkpoint import hostile_files
from checkpoint.hostile_files import Outcome
from glassformer.pipelines.load import load

LONGEST_WAIT = 20.0
ROOM = 4 * 2**30
"""Limit of the memory that loading may take in addition to the process's own, in bytes, to protect this machine."""


def work(first: int, last: int, paths: dict[str, Path], folder: Path, results: Connection) -> None:
    """Run the cases from `first` to before `last` in this worker process, and send each outcome to `results`.

    `paths` are the undamaged models, and `folder` is where damaged copies are written.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the libraries in Rust print their panics
    size = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + ROOM, size + ROOM))
    for case in range(first, last):
        results.send(hostile_files.run_case(case, paths, folder))


def outcomes(first: int, last: int, paths: dict[str, Path], folder: Path) -> Iterator[Outcome]:
    """Run the cases from `first` to before `last` in a worker process, and yield the outcome of each.

    If a case hangs or crashes the worker, that is its outcome, and a new worker continues with the next case.
    """
    context = multiprocessing.get_context("fork")
    while first < last:
        results, sender = context.Pipe(duplex=False)
        worker = context.Process(target=work, args=(first, last, paths, folder, sender), daemon=True)
        worker.start()
        sender.close()
        try:
            while first < last:
                if not results.poll(LONGEST_WAIT):
                    raise TimeoutError
                yield results.recv()
                first += 1
        except (TimeoutError, EOFError) as error:
            worker.kill()
            worker.join()
            told = "hang" if isinstance(error, TimeoutError) else f"crash, exit {worker.exitcode}"
            yield Outcome(first, "?", "see --only", told.split(",")[0], told, LONGEST_WAIT)
            first += 1
        worker.kill()
        worker.join()


def print_table(found: list[Outcome]) -> None:
    """Print one line for each kind of model: how many cases had each result, and the longest time of a case."""
    names = [name for name, _ in collections.Counter(outcome.result for outcome in found).most_common()]
    width = max(map(len, names)) + 2
    print(f"\n{'kind':10}{'cases':>8}" + "".join(f"{name:>{width}}" for name in names) + f"{'worst s':>10}")
    for kind in [*sorted({outcome.kind for outcome in found}), "all"]:
        rows = [outcome for outcome in found if kind in (outcome.kind, "all")]
        counts = collections.Counter(outcome.result for outcome in rows)
        cells = "".join(f"{counts[name]:>{width}}" for name in names)
        print(f"{kind:10}{len(rows):>8}{cells}{max(row.seconds for row in rows):>10.2f}")


def main() -> int:
    """Run the cases and print a table. Return 1 if a case broke a rule."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="how many cases (10000)")
    parser.add_argument("--seed", type=int, default=0, help="the first case (0)")
    parser.add_argument("--only", type=int, metavar="CASE", help="run one case and show its traceback")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = hostile_files.build_models(folder)
        (folder / "broken").mkdir()
        for path in paths.values():  # the undamaged files load, and lazy imports are done before cases are timed
            hostile_files.use(load(path))
        if options.only is not None:
            print(hostile_files.run_case(options.only, paths, folder / "broken", show=True))
            return 0
        found, start = [], time.monotonic()
        for outcome in outcomes(options.seed, options.seed + options.count, paths, folder / "broken"):
            found.append(outcome)
            if outcome.violation:
                print(f"case {outcome.case}, {outcome.kind}: {outcome.violation}\n  after {outcome.deeds}", flush=True)
    bad = sum(bool(outcome.violation) for outcome in found)
    print_table(found)
    print(f"\n{len(found):,} cases in {time.monotonic() - start:.0f} s, {bad} violations")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
