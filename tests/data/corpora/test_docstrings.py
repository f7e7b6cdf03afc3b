"""Docstrings as texts with summaries, on files made here."""

import pytest

from glassformer.data.corpora.docstrings import Docstring, docstrings

BODY = "It adds the two numbers that are given."
SOURCE = f'''
def add(a, b):
    """Return the   sum.

    It adds the two
    numbers that are given.
    """

def same_body(a, b):
    """Return a sum again.

    {BODY.upper()}
    """

class WithoutBody:
    """A class whose docstring has one line only."""

def long_summary():
    """The summary has
    two lines.

    This body has more than six words in it.
    """

def short_body():
    """Return a small number.

    Four words are few.
    """
'''


def test_the_first_line_summarizes_the_rest_and_each_body_occurs_once(tmp_path):
    (tmp_path / "a.py").write_text(SOURCE, encoding="utf-8")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "b.py").write_text(SOURCE.replace("adds", "multiplies"), encoding="utf-8")
    (tmp_path / "not_python.py").write_text("def (", encoding="utf-8")
    assert docstrings(tmp_path) == (Docstring(BODY, "Return the sum."),)


def test_a_folder_without_docstrings_is_refused(tmp_path):
    (tmp_path / "a.py").write_text("x = 1\n", encoding="utf-8")
    with pytest.raises(ValueError, match="holds no Python files with docstrings"):
        docstrings(tmp_path)
