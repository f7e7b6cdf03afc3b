"""pass@k, and the sandbox its programs run in."""

import os
import random
import sys
import time
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.metrics.passing import Problem, pass_at_k, passes, score_programs
from glassformer.metrics.sandbox import Limits, run_program
from glassformer.metrics.surprise import compressed_bits, score_surprise

QUICK = Limits(seconds=3)


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


def test_programs_pass_by_their_tests_alone():
    problem = Problem("double", ("assert double(2) == 4", "assert double(big) == 2 * big"), "big = 10 ** 9")
    right = "def double(x):\n    return 2 * x"
    wrong = "def double(x):\n    return x + 2"
    assert passes(problem, right, QUICK)
    assert not passes(problem, wrong, QUICK)
    assert not passes(problem, "raise SystemExit(0)", QUICK)  # leaving early is no solution
    assert not passes(problem, "def double(x:", QUICK)
    scores = score_programs([problem, problem], [[right, wrong], [wrong, wrong]], (1, 2), QUICK)
    assert scores.values == {"pass_at_1": 25.0, "pass_at_2": 50.0}
    with pytest.raises(ValueError, match="1 problems and programs for 2"):
        score_programs([problem], [[right], [right]])


def test_a_program_has_an_exit_code_and_output():
    assert run_program("print('hello')", QUICK) == (0, "hello\n", False)
    assert run_program("raise SystemExit(7)", QUICK).code == 7
    assert "ZeroDivisionError" in run_program("1 / 0", QUICK).output
    assert run_program("input()", QUICK).code == 1  # nobody is there to answer
    assert run_program("print('\ud800')", QUICK).code != 0


def test_nothing_of_ours_is_there(monkeypatch):
    monkeypatch.setenv("SECRET", "secret")
    told = run_program("import os, sys; print(os.environ.get('SECRET'), sorted(os.listdir('.')), sys.flags.isolated)")
    assert told.output == "None ['output', 'program.py'] 1\n"
    assert run_program("import torch", QUICK).code == 1


def test_time_is_limited():
    began = time.monotonic()
    outcome = run_program("while True: pass", Limits(seconds=0.5))
    assert outcome.timed_out
    assert outcome.code < 0
    assert run_program("import time; time.sleep(60)", Limits(seconds=0.5)).timed_out
    assert time.monotonic() - began < 10


@pytest.mark.skipif(sys.platform == "darwin", reason="its kernel sets no such limit")
def test_memory_and_files_are_limited():
    assert "MemoryError" in run_program("x = bytearray(1 << 33)", QUICK).output
    assert run_program("open('big', 'wb').write(bytes(1 << 24))", QUICK).code != 0
    assert len(run_program("while True: print('x' * 1000)", QUICK).output) <= 20_000


FORKS = """
import os, time
for _ in range(4):
    if os.fork() == 0:
        os.setsid()
        time.sleep(1.5)
        open({path!r}, "a").write("alive")
        os._exit(0)
print("forked")
"""


def test_what_it_starts_ends_with_it(tmp_path):
    """Either it may start nothing, or what it has started is gone before it can do anything."""
    began = time.monotonic()
    run_program(FORKS.format(path=str(tmp_path / "trace")), QUICK)
    assert time.monotonic() - began < 3
    time.sleep(max(0.0, 2.0 - (time.monotonic() - began)))
    assert not (tmp_path / "trace").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="Landlock is Linux's")
def test_nothing_outside_can_be_written(tmp_path):
    os.chmod(tmp_path, 0o777)
    (tmp_path / "mine").write_text("mine")
    os.chmod(tmp_path / "mine", 0o666)
    assert run_program("open('inside', 'w').write('x'); import os; os.remove('inside')", QUICK).code == 0
    if "Landlock" not in _protection():
        pytest.skip("this kernel has no Landlock")
    for program in (f"open({str(tmp_path / 'new')!r}, 'w')", f"open({str(tmp_path / 'mine')!r}, 'a')"):
        assert run_program(program, QUICK).code == 1
    assert run_program(f"import os; os.remove({str(tmp_path / 'mine')!r})", QUICK).code == 1
    assert (tmp_path / "mine").read_text() == "mine"


def _protection():
    import ctypes

    return "Landlock" if ctypes.CDLL(None).syscall(444, None, 0, 1) > 0 else ""


def test_surprise_in_every_unit():
    scores = score_surprise(100.0, 50, 80)
    assert scores["loss"] == 2.0
    assert scores["bits_per_byte"] == pytest.approx(100 / 0.6931471805599453 / 80)
    assert next(iter(score_surprise(1.0, 1, 1, by_character=True).values)) == "loss"
    assert str(scores).startswith("bits per byte 1.8034")
    with pytest.raises(ValueError, match="no text to score on"):
        score_surprise(0.0, 0, 0)


def test_a_compressor_profits_from_what_it_has_seen():
    text = "".join(random.Random(0).choices("abcdefgh", k=3000))
    assert compressed_bits([text], after=[text]) < 0.5 < compressed_bits([text])
    with pytest.raises(ValueError, match="no text to compress"):
        compressed_bits([])


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_a_program_that_makes_a_session_of_its_own_does_not_outlive_its_time():
    def fenced():
        found = set()
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if b"program.py" in path.read_bytes():
                    found.add(path.parent.name)
            except OSError:
                continue
        return found

    before = fenced()
    outcome = run_program("import os, time\ntry: os.setsid()\nexcept OSError: pass\ntime.sleep(30)", Limits(seconds=1))
    assert outcome.timed_out
    left = fenced() - before
    for _ in range(60):  # other tests' programs may be among them: those end by themselves
        if not left & fenced():
            break
        time.sleep(0.1)
    assert not left & fenced()
