"""What the documents show is executed: a page that lies fails here."""

import contextlib
import dataclasses
import importlib.util
import io
import json
import random
import re
import types
import xml.etree.ElementTree
from pathlib import Path
from unittest import mock

import pytest

import glassformer
from glassformer.cli.completion import completion_words
from glassformer.decoding import GenerationConfig
from glassformer.metrics.scores import LOWER_IS_BETTER, TITLES
from glassformer.pipelines.pipeline_registry import pipeline_named
from glassformer.tasks.configs.task_options import given_options
from glassformer.tasks.task_registry import config_named
from glassformer.tasks.train_function import read_request
from newcomer.files import write_files

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TASK_GUIDES = [page for page in PAGES if page.parent.name == "tasks" and page.stem != "index"]
CONTINUED = {"tutorial.md"}
"""Pages whose Python blocks share their variables."""


def blocks(language):
    for page in PAGES:
        if page in TASK_GUIDES:  # they train models: see test_the_python_example_of_a_guide_runs
            continue
        found = re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
        for number, code in enumerate(["\n".join(found)] if page.name in CONTINUED else found):
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


def example_of(guide):
    (code,) = re.findall(r"```python\n(.*?)```", guide.read_text(encoding="utf-8"), re.S)
    return compile(code, guide.name, "exec")


@pytest.mark.parametrize("guide", TASK_GUIDES, ids=lambda guide: guide.stem)
def test_the_python_example_of_a_guide_calls_what_exists(guide, monkeypatch, capsys):
    """Nothing is trained: the options of `train` are checked, and the pipeline's methods by their signatures."""
    tasks = {}

    def train(task, *, out, **options):
        read_request(task, given_options(config_named(task), options))
        tasks[out] = task
        return dict.fromkeys([*TITLES, *LOWER_IS_BETTER, "exact_match"], 0.0)

    monkeypatch.setattr(glassformer, "train", train, raising=False)
    load = lambda folder: mock.create_autospec(pipeline_named(tasks[folder]), instance=True)  # noqa: E731
    monkeypatch.setattr(glassformer, "load", load, raising=False)
    exec(example_of(guide), {"__name__": "documentation"})
    assert tasks
    assert guide.stem in tasks.values()


@pytest.mark.parametrize("guide", TASK_GUIDES, ids=lambda guide: guide.stem)
def test_the_python_example_of_a_guide_runs(guide, tmp_path, monkeypatch, capsys, request):
    if not request.config.getoption("--full"):
        pytest.skip("runs with --full")
    short = {"minutes": 0, "updates": 2, "max_tokens": 256, "device": "cpu"}
    real = glassformer.train
    monkeypatch.setattr(glassformer, "train", lambda task, **given: real(task, **{**given, **short}), raising=False)
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path)
    exec(example_of(guide), {"__name__": "documentation"})
    assert capsys.readouterr().out


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


def tool(name):
    """A program of tools/, as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_drawings_are_what_the_tool_draws():
    draw = tool("draw_docs")
    assert {path.name for path in draw.DRAWINGS.iterdir()} == set(draw.PICTURES)
    for name, picture in draw.PICTURES.items():
        drawn = picture()
        assert xml.etree.ElementTree.fromstring(drawn).tag.endswith("svg")
        assert (draw.DRAWINGS / name).read_text(encoding="utf-8") == drawn, f"run tools/draw_docs.py: {name} is old"


def test_the_notebook_is_the_tutorial_with_its_outputs():
    make = tool("make_notebook")
    made = make.notebook((make.DOCS / "tutorial.md").read_text(encoding="utf-8"))
    assert (make.DOCS / "tutorial.ipynb").read_text(encoding="utf-8") == made, "run tools/make_notebook.py"
    cells = json.loads(made)["cells"]
    assert sum(bool(cell.get("outputs")) for cell in cells) > 15


def test_examples_of_docstrings_are_fenced_in_the_reference():
    fenced = tool("fence_examples").fence_examples("Add one.\n\n>>> 1 + 1\n2\n>>> 2 + 1\n3\n\nMore.\n\n>>> 0 + 1\n1")
    assert fenced == ("Add one.\n\n```pycon\n>>> 1 + 1\n2\n>>> 2 + 1\n3\n```\n\nMore.\n\n```pycon\n>>> 0 + 1\n1\n```")


def test_the_decoding_page_names_every_field():
    text = (ROOT / "docs" / "decoding.md").read_text(encoding="utf-8")
    for field in dataclasses.fields(GenerationConfig):
        assert f"`{field.name}`" in text, field.name


GUIDES = [page for page in PAGES if page.parent.name == "tasks" or page.stem in ("training", "decoding", "pretrained")]


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_every_flag_in_the_text_of_a_guide_exists(page):
    """In tables and sentences, where no command is executed: `--share 0.15`, `run --beam 4`."""
    words = completion_words()
    task = f"train {page.stem}"
    trained = {flag for command, flags in words.items() if command.startswith("train ") for flag in flags}
    known = {"train": set(words.get(task, trained)), "run": set(words["run"]), "eval": set(words["eval"])}
    known["train"] |= {f"--no-{flag[2:]}" for flag in known["train"]}
    for span in re.findall(r"`((?:run |eval |)--[^`]+)`", page.read_text(encoding="utf-8")):
        verb = span.split()[0] if not span.startswith("--") else ""
        allowed = known[verb] if verb else set().union(*known.values(), words["convert"])
        for flag in re.findall(r"--[a-z][\w-]*", span):
            assert flag in allowed, f"{page.name}: {span}"


EXTENSIONS = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8").split("\n## ")[1:]


@pytest.mark.parametrize("section", EXTENSIONS, ids=lambda section: section.splitlines()[0])
def test_the_files_to_touch_are_those_that_hold_the_newest_addition(section):
    newest = re.search(r"^Newest: `(.+)`$", section, re.M).group(1)
    word = re.compile(rf"(?<!\w){re.escape(newest)}(?!\w)", re.I)
    listed = set(re.findall(r"^- `([^`]+)`", section, re.M))
    other = set(re.findall(r"`([^`]+)`", section.partition("Other uses:")[2]))
    for name in listed | other:
        assert word.search((ROOT / name).read_text(encoding="utf-8")), f"{name} does not contain {newest}"
    holding = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "src").rglob("*.py")
        if word.search(path.read_text(encoding="utf-8"))
    }
    assert holding <= listed | other, f"not listed: {sorted(holding - listed - other)}"
    assert any(name.startswith("tests/") for name in listed), "no test is listed"


def test_every_kind_of_addition_has_its_list():
    titles = [section.splitlines()[0] for section in EXTENSIONS]
    kinds = ("position", "activation", "backend", "norm", "task", "schedule", "family", "metric")
    assert [kind for kind in kinds if not any(kind in title for title in titles)] == []


def test_the_command_line_reference_has_every_option():
    pages = tool("cli_reference").reference_pages()
    for command, words in completion_words().items():
        name = "eval.md" if command == "eval" else f"{command.replace(' ', '-')}.md"
        if name in pages:
            listed = re.findall(r"^\| `--(?:\[no-\])?([\w-]+)", pages[name], re.M)
            missing = {word[2:].removeprefix("no-") for word in words if word.startswith("--")} - set(listed)
            assert missing <= {"help", "help-all"}, f"{name}: {missing}"
    assert "\n".join(pages.values()).count("| `--") > 500


@pytest.mark.parametrize(
    "loads",
    [
        '<script src="https://example.org/a.js"></script>',
        '<link rel="stylesheet" href="//example.org/a.css">',
        "<style>@import 'https://example.org/a.css'</style>",
        "<style>a { background: url(http://example.org/a.png) }</style>",
    ],
)
def test_a_site_that_loads_something_from_the_web_is_refused(loads, tmp_path):
    hook, config = tool("docs_hook"), types.SimpleNamespace(site_dir=str(tmp_path))
    (tmp_path / "a.html").write_text('<a href="https://example.org">a link</a><script src="a.js">', encoding="utf-8")
    hook.on_post_build(config)
    (tmp_path / "b.html").write_text(loads, encoding="utf-8")
    with pytest.raises(SystemExit, match="from the web"):
        hook.on_post_build(config)


def test_every_page_is_in_the_navigation_of_the_site():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    for page in PAGES[1:]:
        assert f" {page.relative_to(ROOT / 'docs').as_posix()}\n" in navigation, page.name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            is_generated = "reference/" in target  # by tools/docs_hook.py; mkdocs checks these links
            assert is_generated or (page.parent / target).exists(), target


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
