import ast
from textwrap import dedent

import pytest

from glassformer.inspect.code_excerpts import EXCERPTS, MOST_LINES, code_excerpts, excerpt


def test_every_excerpt_exists_and_is_short():
    for view, found in code_excerpts().items():
        assert found["file"] == f"src/glassformer/{EXCERPTS[view][0]}"
        assert found["code"].split("(")[0].split(":")[0].split()[1] == found["name"].split(".")[-1]
        assert len(found["code"].splitlines()) <= MOST_LINES + 1


def test_an_excerpt_is_the_whole_function():
    found = excerpt("nn/attention_backends.py", "masked_softmax")
    [function] = ast.parse(dedent(found["code"])).body
    assert function.name == "masked_softmax"


def test_a_name_that_is_gone_is_named():
    with pytest.raises(LookupError, match=r"nn/positions\.py does not define Sinus"):
        excerpt("nn/positions.py", "Sinus")
