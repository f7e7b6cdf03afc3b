"""Compare 100 random models of every Hugging Face family with HF Transformers, and count the results.

    python benchmarks/parity.py benchmarks/results/parity.json
    python benchmarks/parity.py new.json --families llama t5

For each family this runs the tests of `tests/checkpoint/test_random_hf.py` that compare outputs (to 1e-5), gradients
(to 1e-4) and greedy texts, with their large counts. It needs about half an hour on one core and no network.
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from glassformer.bench.result_file import check_new, markdown_table, write_result
from glassformer.checkpoint.hf import FAMILIES

ROOT = Path(__file__).parents[1]
FILE = "tests/checkpoint/test_random_hf.py"
TESTS = (
    "test_a_random_hf_model_gives_the_same_outputs_or_is_refused_by_name",
    "test_a_random_hf_model_gives_the_same_gradients_and_ignores_padding",
)
GREEDY = "test_a_random_hf_model_writes_the_same_greedy_text"
COLUMNS = ("`model_type`", "outputs equal", "refused by name", "gradients equal", "greedy texts equal", "tests failed")


class Parity(NamedTuple):
    """Counts of the models of one family that the tests compared or refused, and of the tests that failed."""

    loaded: int
    refused: int
    gradients: int
    texts: int
    failed: int


def run_tests(family: str) -> Parity:
    """Run the tests of one family in another process and count what they printed."""
    names = [*TESTS, GREEDY] if FAMILIES[family].kind != "encoder" else [*TESTS]
    command = [sys.executable, "-m", "pytest", "--full", "-rA", "-p", "no:cacheprovider"]
    command += [f"{FILE}::{name}[{family}]" for name in names]
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, check=False)
    return count_results(family, done.stdout)


def count_results(family: str, printed: str) -> Parity:
    """Read the numbers of one family from what pytest printed. Raise ValueError if the tests did not run."""
    tally = re.search(rf"^{re.escape(family)} \{{'loaded': (\d+), 'refused': (\d+)\}}$", printed, re.M)
    gradients = re.search(rf"^{re.escape(family)} (\d+) gradients$", printed, re.M)
    texts = re.search(rf"^{re.escape(family)} (\d+) texts$", printed, re.M)
    failed = re.search(r"(\d+) failed", printed)
    if re.search(r"\d+ (passed|failed)", printed) is None:
        raise ValueError(f"the tests of {family} did not run: {printed[-2000:]}")
    return Parity(
        *map(int, tally.groups() if tally else (0, 0)),
        int(gradients[1]) if gradients else 0,
        int(texts[1]) if texts else 0,
        int(failed[1]) if failed else 0,
    )


def main() -> None:
    """Run the tests of all families and write the result file that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="new file of results")
    parser.add_argument("--families", nargs="*", default=[*FAMILIES], choices=[*FAMILIES], help="only these")
    given = parser.parse_args()
    check_new(given.out)
    rows: list[list[str | float]] = []
    for family in given.families:
        found = run_tests(family)
        texts = found.texts if FAMILIES[family].kind != "encoder" else ""
        rows.append([f"`{family}`", found.loaded, found.refused, found.gradients, texts, found.failed])
        print(*rows[-1], sep="\t", flush=True)
    notes = ["A config is refused if it has a setting that Glassformer lacks; the error names it."]
    write_result(given.out, title="Random configs beside HF Transformers", columns=COLUMNS, rows=rows, notes=notes)
    print(markdown_table(COLUMNS, rows))


if __name__ == "__main__":
    main()
