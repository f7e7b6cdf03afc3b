"""A language model of source code, which completes files, fills in gaps and solves problems that have tests."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, overload

from glassformer.decoding import GenerationConfig
from glassformer.pipelines.language_model import LanguageModel
from glassformer.pipelines.pipeline import ManyTexts, check_text, each_text
from glassformer.pipelines.pretrained_base import gap_tokens

if TYPE_CHECKING:  # `glassformer run` imports no metrics
    from glassformer.metrics.pass_at_k import Problem
    from glassformer.metrics.sandbox import SandboxLimits, SandboxMode
    from glassformer.metrics.scores import Scores

STOPS = ("\nclass ", "\nassert ", '\n"""', "\nif __name__", "\nprint(", "\n#")
"""Texts at which `solve` stops generating, because the function is complete and other top-level code begins."""


class CodeModel(LanguageModel):
    """A decoder that was trained on source code, with its tokenizer."""

    task = "code"

    @overload
    def complete(self, prompt: str, config: GenerationConfig | None = None) -> str: ...
    @overload
    def complete(self, prompt: ManyTexts, config: GenerationConfig | None = None) -> list[str]: ...
    def complete(self, prompt: str | ManyTexts, config: GenerationConfig | None = None) -> str | list[str]:
        """Generate the rest of a file, given its beginning as `prompt`, and return only the new text.

        A list of beginnings gives a list of texts.
        """
        return each_text(prompt, lambda texts: self.generate(texts, config), "prompt")

    def infill(self, prefix: str, suffix: str, config: GenerationConfig | None = None) -> str:
        """Return a generated text that fits between `prefix` and `suffix`.

        If both together are too long for the model's context, raise a ValueError. With `truncate`, they are cut at the
        ends that are farthest from the gap.
        """
        config = config or self.generation
        check_text(prefix, "prefix"), check_text(suffix, "suffix")
        marks = gap_tokens(self.tokenizer)
        if marks is None:
            raise ValueError("the model has no tokens to mark a gap: expected a code model that was trained with --fim")
        before, after, middle = (self.tokenizer.special_id(mark) for mark in marks)
        room = max(self.context - 4 - min(config.max_new_tokens, self.context // 4), 2)
        left, right = self.tokenizer.encode_plain(prefix), self.tokenizer.encode_plain(suffix)
        self.fit_inputs([left + right], room, lambda both: both)  # raises or counts; both sides are cut below
        n_right = min(len(right), max(room // 2, room - len(left)))
        n_left = min(len(left), room - n_right)
        prompt = [before, *left[len(left) - n_left :], after, *right[:n_right], middle]
        found = self.write_tokens(
            [[*self.start, *prompt]],
            replace(config, num_return_sequences=1),
            end=self.end,
            tokenizer=self.tokenizer,
        )
        return found[0][0].text or ""

    def solve(
        self,
        problems: "Sequence[Problem]",
        *,
        samples: int = 1,
        limits: "SandboxLimits | None" = None,
        max_new_tokens: int = 256,
        sandbox: "SandboxMode" = "strict",
    ) -> "Scores":
        """Generate `samples` programs for each problem, run the tests in a sandbox, and return pass@k.

        pass@k is returned for k = `samples`, and for each of 1, 10 and 100 that is smaller than `samples`. If `samples`
        is 1, the program is generated greedily; otherwise programs are sampled at temperature 0.8 with top_p 0.95.

        If this machine lacks a protection that untrusted programs require, `sandbox="strict"` raises WeakSandboxError
        before any program is generated, and `sandbox="weak"` uses the protections that there are.
        """
        from glassformer.metrics.pass_at_k import score_programs
        from glassformer.metrics.sandbox import check_sandbox

        if samples < 1:
            raise ValueError(f"samples={samples}: expected at least 1")
        check_sandbox(sandbox, limits)
        config = GenerationConfig(max_new_tokens=max_new_tokens, stop_strings=STOPS)
        if samples > 1:
            config = replace(config, do_sample=True, temperature=0.8, top_p=0.95)
        prompts = self.fit_prompts([self.read(prompt_of(problem)) for problem in problems], config)
        # Each sample has its own seed. They are 1000 apart, because each context window of a program adds 1.
        tries = [self.write_after(prompts, replace(config, seed=1000 * number)) for number in range(samples)]
        programs = [list(found) for found in zip(*tries, strict=True)]
        ks = [k for k in (1, 10, 100, samples) if k <= samples]
        return score_programs(problems, programs, ks, limits, sandbox=sandbox)


def prompt_of(problem: "Problem") -> str:
    """Return the prompt for a problem: the beginning of a file whose docstring holds the problem's text and tests.

    The MBPP benchmark uses the same format.
    """
    return "\n".join(['"""', problem.text, *problem.tests, '"""', ""])
