"""The code model: prompts of problems, and gaps that are filled in."""

import pytest

from glassformer.decoding import GeneratedText
from glassformer.metrics.pass_at_k import Problem
from glassformer.pipelines.blanks import GAP_TOKENS
from glassformer.pipelines.code_model import CodeModel, prompt_of
from pipelines.tiny_pipelines import make


def test_a_problem_becomes_a_docstring_with_its_tests():
    assert prompt_of(Problem("Add.", ("assert add(1, 2) == 3",))) == '"""\nAdd.\nassert add(1, 2) == 3\n"""\n'


def test_the_prompt_of_a_gap_fits_into_the_context_and_keeps_the_text_beside_the_gap():
    tool, prompts = make(CodeModel), []
    tool.writer = lambda _, given, *rest, **more: prompts.append(given[0]) or [[GeneratedText([5], text="x")]]
    with pytest.raises(ValueError, match=r"the input has .* tokens: expected at most .* --truncate"):
        tool.infill("the cat " * 60 + "sees", "red " + "the saw " * 60)
    tool.truncate = True
    assert tool.infill("the cat " * 60 + "sees", "red " + "the saw " * 60) == "x"
    assert tool.n_truncated == 1
    before, after, middle = map(tool.tokenizer.special_id, GAP_TOKENS)
    (prompt,) = prompts
    assert len(prompt) <= tool.context
    assert (prompt[1], prompt[-1]) == (before, middle)
    split = prompt.index(after)
    assert tool.tokenizer.decode(prompt[2:split]).endswith("sees")
    assert tool.tokenizer.decode(prompt[split + 1 : -1]).startswith("red")


def test_at_least_one_program_must_be_asked_for():
    with pytest.raises(ValueError, match="samples=0: expected at least 1"):
        make(CodeModel).solve([], samples=0)
