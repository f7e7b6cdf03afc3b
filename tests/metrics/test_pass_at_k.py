"""pass@k, and perplexity in its units."""

import random
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.metrics.pass_at_k import Problem, pass_at_k, passes, score_programs
from glassformer.metrics.perplexity import compressed_bits, score_perplexity
from glassformer.metrics.sandbox import SandboxLimits, WeakSandboxError, check_sandbox

LIMITS = SandboxLimits(seconds=20)
"""Far more than any of these programs needs, so that a busy machine changes no result."""


@pytest.fixture(scope="module")
def sandbox():
    """The strongest mode that this machine has."""
    try:
        check_sandbox()
    except WeakSandboxError:
        return "weak"
    return "strict"


@given(st.lists(st.booleans(), min_size=1, max_size=9), st.data())
def test_pass_at_k_is_the_share_of_subsets_with_a_program_that_passed(results, data):
    k = data.draw(st.integers(1, len(results)))
    subsets = list(combinations(results, k))
    expected = sum(any(subset) for subset in subsets) / len(subsets)
    assert pass_at_k(len(results), sum(results), k) == pytest.approx(expected)


def test_pass_at_k_stays_exact_for_many():
    assert pass_at_k(10_000, 1, 1) == pytest.approx(1e-4)
    for n, passed, k in ((3, 4, 1), (3, 1, 4), (3, 1, 0), (3, -1, 1)):
        with pytest.raises(ValueError, match="expected 0 <= passed <= n"):
            pass_at_k(n, passed, k)


DOUBLE = Problem("double", ("assert double(2) == 4", "assert double(big) == 2 * big"), "big = 10 ** 9")
RIGHT = "def double(x):\n    return 2 * x"
WRONG = "def double(x):\n    return x + 2"


def test_programs_pass_by_their_tests_alone(sandbox):
    assert passes(DOUBLE, RIGHT, LIMITS, sandbox)
    assert not passes(DOUBLE, WRONG, LIMITS, sandbox)
    assert not passes(DOUBLE, "def double(x:", LIMITS, sandbox)
    scores = score_programs([DOUBLE, DOUBLE], [[RIGHT, WRONG], [WRONG, WRONG]], (1, 2), LIMITS, sandbox=sandbox)
    assert scores.values == {"pass_at_1": 25.0, "pass_at_2": 50.0}
    with pytest.raises(ValueError, match="1 problems and programs for 2"):
        score_programs([DOUBLE], [[RIGHT], [RIGHT]])


def test_a_program_is_imported_and_not_run(sandbox):
    """What stands under `__main__` is for people at a terminal."""
    for main in ("double(int(input()))", "import sys; sys.exit(3)"):
        assert passes(DOUBLE, f"{RIGHT}\nif __name__ == '__main__':\n    {main}\n", LIMITS, sandbox)
    record = "from dataclasses import dataclass\n@dataclass\nclass Box:\n    size: 'int'\n"
    assert passes(Problem("box", ("assert Box(2).size == 2", "assert __name__ == 'program'")), record, LIMITS, sandbox)


# Programs that are wrong and try to end as if they were right.
CHEATS = {
    "exit at once": "raise SystemExit(0)",
    "exit without a word": "import os; os._exit(0)",
    "exit in a test": "import sys\ndef double(x): sys.exit(0)",
    "leave in a test": "import os\ndef double(x): os._exit(0)",
    "exit at the end": "import atexit, os; atexit.register(os._exit, 0)\n" + WRONG,
    "swallow errors": "import sys; sys.excepthook = lambda *error: None\n" + WRONG,
    "replace builtins": """
import builtins, os, traceback
def nothing(*arguments, **options): pass
builtins.exec = builtins.compile = builtins.print = builtins.BaseException = nothing
traceback.print_exception = nothing
os._exit = lambda code: None
def double(x): return x + 2
""",
    "replace the output": "import io, sys; sys.stdout = sys.stderr = io.StringIO(); print('passed')\n" + WRONG,
    "look for the token": """
import os, re, sys
text = " ".join([*sys.argv, *os.environ, *os.environ.values(), *(open(name).read() for name in os.listdir("."))])
found = re.findall(r"passed-\\w+|[0-9a-f]{32}", text) or ["passed"]
print(found[-1], flush=True)
for file in range(3, 64):
    try: os.write(file, found[-1].encode())
    except OSError: pass
os._exit(0)
""",
}


@pytest.mark.parametrize("program", CHEATS.values(), ids=CHEATS)
def test_a_program_that_ends_early_or_replaces_things_has_not_passed(program, sandbox):
    assert not passes(DOUBLE, program, LIMITS, sandbox)


def test_perplexity_and_bits_equal_their_formulas():
    scores = score_perplexity(100.0, 50, 80)
    assert scores["loss"] == 2.0
    assert scores["bits_per_byte"] == pytest.approx(100 / 0.6931471805599453 / 80)
    assert next(iter(score_perplexity(1.0, 1, 1, by_character=True).values)) == "loss"
    assert str(scores).startswith("bits per byte 1.8034")
    with pytest.raises(ValueError, match="no text to score on"):
        score_perplexity(0.0, 0, 0)


def test_compressor_needs_fewer_bits_after_seen_text():
    text = "".join(random.Random(0).choices("abcdefgh", k=3000))
    assert compressed_bits([text], after=[text]) < 0.5 < compressed_bits([text])
    with pytest.raises(ValueError, match="no text to compress"):
        compressed_bits([])
