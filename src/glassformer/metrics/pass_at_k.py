"""pass@k: the probability that at least one of k generated programs passes its problem's tests (Chen et al. 2021)."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from glassformer.metrics.sandbox import SandboxLimits, SandboxMode, run_tests
from glassformer.metrics.scores import Scores


class Problem(NamedTuple):
    """A programming problem: its task in words, and the tests that a correct program passes."""

    text: str
    """The task in words, from which a model writes the program."""
    tests: tuple[str, ...]
    """Lines of Python that raise if the program is wrong."""
    setup: str = ""
    """Code to run before the tests."""
    where: str = ""
    """`file:line` of the problem."""


def pass_at_k(n: int, passed: int, k: int) -> float:
    """Return the probability that at least one of k programs drawn from n passes: 1 - C(n-c, k) / C(n, k).

    c is `passed`, the number of the n programs that pass. The estimate is unbiased, unlike 1 - (1 - c/n)^k, which is
    too low. It is computed as a product, because the binomial coefficients are very large.
    """
    if not 0 <= passed <= n or not 1 <= k <= n:
        raise ValueError(f"n={n}, passed={passed}, k={k}: expected 0 <= passed <= n and 1 <= k <= n")
    if n - passed < k:
        return 1.0
    fails = 1.0
    for size in range(n - passed + 1, n + 1):
        fails *= 1 - k / size
    return 1 - fails


def score_programs(
    problems: Sequence[Problem],
    programs: Sequence[Sequence[str]],
    ks: Sequence[int] = (1,),
    limits: SandboxLimits | None = None,
    watch: Callable[[Problem, str, bool], None] = lambda problem, program, passed: None,
    sandbox: SandboxMode = "strict",
) -> Scores:
    """Run the tests of every problem on its programs, and return pass@k for each k in `ks`, in percent.

    `programs[i]` are the programs for `problems[i]`, at least `max(ks)` of them. `watch` is called after each program
    with the problem, the program and whether it passed. If this machine cannot fully restrict the programs,
    `sandbox="strict"` raises WeakSandboxError, and `sandbox="weak"` runs them nevertheless.
    """
    if not problems or len(problems) != len(programs):
        raise ValueError(f"{len(problems)} problems and programs for {len(programs)}: expected as many, at least one")
    counts = []
    for problem, tried in zip(problems, programs, strict=True):
        passed = 0
        for program in tried:
            result = passes(problem, program, limits, sandbox)
            watch(problem, program, result)
            passed += result
        counts.append((len(tried), passed))
    values = {
        f"pass_at_{k}": 100 * sum(pass_at_k(n, passed, k) for n, passed in counts) / len(counts)
        for k in sorted(set(ks))
    }
    return Scores(values)


def passes(
    problem: Problem, program: str, limits: SandboxLimits | None = None, sandbox: SandboxMode = "strict"
) -> bool:
    """Return whether a program passes all tests of a problem.

    The program is imported in the sandbox, so code under `__main__` does not run. `glassformer.metrics.sandbox`
    documents what a cheating program can still do.
    """
    return run_tests(program, "\n".join([problem.setup, *problem.tests, ""]), limits, sandbox).passed
