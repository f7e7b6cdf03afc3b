"""pass@k: how likely one of k programs passes its tests (Chen et al. 2021)."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from glassformer.metrics.sandbox import Limits, SandboxMode, run_tests
from glassformer.metrics.scores import Scores


class Problem(NamedTuple):
    """A task in words, and the tests that a solution passes."""

    text: str
    tests: tuple[str, ...]
    """Lines of Python that raise where the program is wrong."""
    setup: str = ""
    """What the tests need before them."""
    where: str = ""


def pass_at_k(n: int, passed: int, k: int) -> float:
    """The chance that of k programs drawn from n at least one is among those that passed: 1 - C(n-c, k) / C(n, k).

    The estimate is unbiased; 1 - (1 - c/n)^k is too low. It is computed as a product, whose factors stay small.
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
    limits: Limits | None = None,
    watch: Callable[[Problem, str, bool], None] = lambda problem, program, passed: None,
    sandbox: SandboxMode = "strict",
) -> Scores:
    """pass@k in percent, of equally many programs for each problem; `watch` is called with each one's result.

    Raises WeakSandboxError where this machine cannot restrict the programs, unless `sandbox` is "weak".
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


def passes(problem: Problem, program: str, limits: Limits | None = None, sandbox: SandboxMode = "strict") -> bool:
    """Whether all tests of a problem hold for a program, which is imported in the sandbox: `__main__` code is not run.

    `glassformer.metrics.sandbox` says what a program that is written to cheat can still do.
    """
    return run_tests(program, "\n".join([problem.setup, *problem.tests, ""]), limits, sandbox).passed
