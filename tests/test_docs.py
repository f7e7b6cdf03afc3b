"""What the documents show is executed: a page that lies fails here."""

import contextlib
import io
import random
import re
from pathlib import Path

import pytest

import glassformer

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(language):
    for page in PAGES:
        for number, code in enumerate(re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.S)):
            yield pytest.param(code, id=f"{page.name}-{number}")


def write_pairs(folder):
    """The reader's own files, train.en and train.de, that the examples speak of."""
    chance = random.Random(0)
    rows = [chance.choices((("one", "eins"), ("two", "zwei"), ("three", "drei")), k=5) for _ in range(200)]
    for side, name in enumerate(("train.en", "train.de")):
        (folder / name).write_text(
            "".join(" ".join(word[side] for word in row) + "\n" for row in rows), encoding="utf-8"
        )


@pytest.mark.parametrize("code", list(blocks("python")))
def test_python_blocks_run_and_print_what_they_say(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_pairs(tmp_path)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "documentation", "exec"), {"__name__": "documentation"})
    promised = re.findall(r"^print\(.*\)  # (.*)$", code, re.M)
    assert promised == printed.getvalue().splitlines()[: len(promised)]


def test_no_two_examples_of_the_readme_write_the_same_folder():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shell, python = ("".join(re.findall(rf"```{language}\n(.*?)```", text, re.S)) for language in ("sh", "python"))
    folders = re.findall(r" --out (\S+)", shell) + re.findall(r'\.train\("([^"]+)"', python)
    assert len(folders) > 6
    assert sorted(folders) == sorted(set(folders))


def test_the_readme_example_is_about_twenty_lines():
    first = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S).group(1)
    assert len([line for line in first.splitlines() if line.strip()]) <= 20


def test_every_public_name_of_the_documents_is_in_their_table():
    table = (ROOT / "docs" / "documents.md").read_text(encoding="utf-8")
    for name in glassformer.documents.__all__:
        assert f"`{name}" in table, name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_every_make_target_in_the_pages_exists():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    pages = [*PAGES, ROOT / "CONTRIBUTING.md"]
    for target in {t for page in pages for t in re.findall(r"`make ([a-z-]+)", page.read_text(encoding="utf-8"))}:
        assert re.search(rf"^{target}:", makefile, re.M), target


def test_every_test_named_in_the_pages_exists():
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", pages)
    assert named
    for file, name in named:
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{name}"
