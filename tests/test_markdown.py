"""Markdown files of the repository: line length, and the length of the README."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("docs", "src", "tests", "tools", "benchmarks", "examples", "recipes", ".github")
FILES = sorted([*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))])


def wide_lines(text):
    """Numbers of the lines over 120 characters that could be wrapped: one long word alone cannot."""
    lines = enumerate(text.splitlines(), 1)
    return [number for number, line in lines if len(line) > 120 and len(line.removeprefix("- ").split()) > 1]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_line_is_longer_than_120_characters(path):
    assert wide_lines(path.read_text(encoding="utf-8")) == []


def test_a_wide_line_is_found():
    assert wide_lines(f"short\n{'word ' * 30}\n- {'x' * 130}\n| {'cell | ' * 20}") == [2, 4]


def test_the_readme_has_at_most_150_lines():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150
