"""Imports go to lower layers, files stay small, the core needs few packages, and docs/architecture.md is true."""

import ast
import graphlib
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "glassformer"
FILES = sorted(SOURCE.rglob("*.py"))

LAYERS = {
    "reference": 0,
    "cache_folder": 0,
    "base": 0,
    "progress": 0,
    "kernels": 1,
    "text": 1,
    "metrics": 1,
    "nn": 2,
    "models": 3,
    "data": 3,
    "documents": 4,
    "checkpoint": 4,
    "runtime": 4,
    "decoding": 5,
    "training": 6,
    "pipelines": 7,
    "tasks": 8,
    "inspect": 8,
    "bench": 9,
    "serve": 9,
    "cli": 10,
}


def package_of(path):
    """The package of a file, or the module itself at the top."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@cache
def nodes_of(path):
    """All nodes of a file's syntax tree."""
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def imported_packages(path):
    """Packages of ours that a file imports, at the top or inside functions."""
    for node in nodes_of(path):
        names = [node.module] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module == "glassformer":
            names += [f"glassformer.{alias.name}" for alias in node.names]
            assert {alias.name for alias in node.names} <= set(LAYERS), f"{path} imports from the package itself"
        for name in names:
            if name and name.startswith("glassformer."):
                yield name.split(".")[1]
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"


def test_every_package_has_a_layer():
    assert {package_of(path) for path in FILES} - {"__init__", "__main__"} <= set(LAYERS)


def test_imports_go_to_lower_layers():
    wrong = [
        f"{path.relative_to(SOURCE)} imports {there}, which is not below {here}"
        for path in FILES
        if (here := package_of(path)) not in ("__init__", "__main__")  # they may import everything
        for there in imported_packages(path)
        if there != here and LAYERS[there] >= LAYERS[here]
    ]
    assert not wrong


def test_files_stay_within_400_lines():
    lines = {path.relative_to(SOURCE): path.read_text(encoding="utf-8").splitlines() for path in FILES}
    long = {path: len(some) for path, some in lines.items() if len(some) > 400}
    assert not [path for path in long if "Over 400 lines because" not in "\n".join(lines[path][:15])], long


def test_there_is_no_utils():
    assert not [path for path in FILES if path.stem in ("utils", "util", "helpers", "misc", "common")]


def test_architecture_page_names_every_file_and_nothing_else():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for path in FILES:
        if path.name not in ("__init__.py", "__main__.py"):
            assert f"`{path.relative_to(SOURCE).as_posix()}`" in page, f"docs/architecture.md does not name {path.name}"
    for word in page.split("`")[1::2]:
        if word.endswith(".py") and "/" in word and not word.startswith(("tests/", "tools/")):
            assert (SOURCE / word).exists(), f"docs/architecture.md names {word}, which is gone"


TESTED_ELSEWHERE = {
    "__main__.py": "one call of cli.main; the tests of the command line start it as a process",
}
"""Modules without a test file of their name, and the reason."""


def test_every_module_has_a_test_file_of_its_name():
    """`src/glassformer/nn/norms.py` is tested in `tests/nn/test_norms.py`."""
    modules = [path.relative_to(SOURCE) for path in FILES if path.name != "__init__.py"]
    without = {
        module.as_posix()
        for module in modules
        if not (ROOT / "tests" / module.parent / f"test_{module.stem}.py").is_file()
    }
    assert without == set(TESTED_ELSEWHERE), "add the test file, or a reason to TESTED_ELSEWHERE"


CORE_PACKAGES = {"torch", "numpy", "safetensors", "tokenizers", "typing_extensions"}
"""All that building and training models from Python needs."""


def requirements(names):
    """These distributions, and what they require on this machine without extras, and so on down."""
    found, waiting = set(names), list(names)
    while waiting:
        for line in metadata.requires(waiting.pop()) or []:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                key = requirement.name
                if key not in found:
                    found.add(key)
                    waiting.append(key)
    return found


def bare_environment(folder, names):
    """A folder that holds these distributions and no others, by links to where they are installed."""
    for name in names:
        distribution = metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or [] if file.parts[0] not in ("..", "__pycache__")}:
            if not (folder / top).exists():
                (folder / top).symlink_to(distribution.locate_file(top))
    (folder / "glassformer").symlink_to(SOURCE)


def run_alone(folder, program, *arguments):
    command = (
        f"import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p] + [{str(folder)!r}]\n{program}"
    )
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", command, *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


CORE = """
import torch
import glassformer
from glassformer.data.corpora.toy import counting_rows
from glassformer.training import fit, label_smoothed_cross_entropy

for name in glassformer.__all__:
    getattr(glassformer, name)
model = glassformer.build_model(glassformer.preset("tiny-llama"))

def loss(rows):
    return label_smoothed_cross_entropy(model(rows[:, :-1]), rows[:, 1:])

assert fit(model, counting_rows(9, 8, 4), loss, steps=3).step == 3

from dataclasses import replace
from pathlib import Path
from glassformer.tasks.classification import Classification, ClassificationConfig, LabeledData

folder = Path(sys.argv[1])
(folder / "a.tsv").write_text("text\\tlabel\\n" + "one two\\ta\\nthree four\\tb\\n" * 20)
usual = ClassificationConfig(data=LabeledData(data=(folder / "a.tsv",), valid=(folder / "a.tsv",)))
config = replace(
    usual,
    model=replace(usual.model, vocab_size=300, d_model=16, n_heads=2, d_ff=16, n_encoder_layers=1),
    train=replace(usual.train, updates=2, warmup=1, device="cpu"),
)
assert Classification(config).train(folder / "m")["accuracy"] >= 0
"""


def test_the_core_imports_and_trains_with_its_own_dependencies_alone(tmp_path):
    packages, work = tmp_path / "packages", tmp_path / "work"
    packages.mkdir()
    work.mkdir()
    bare_environment(packages, requirements(CORE_PACKAGES))
    result = run_alone(packages, CORE, str(work))
    assert result.returncode == 0, result.stderr
    for name in ("rich", "sacrebleu"):
        assert f"No module named '{name}'" in run_alone(packages, f"import {name}").stderr


def test_the_default_dependencies_are_the_core_the_command_line_and_the_metrics():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    direct = {Requirement(line).name for line in project["dependencies"]}
    assert direct == CORE_PACKAGES | {"rich", "sacrebleu", "rouge_score", "seqeval"}
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    for name in {Requirement(line).name for line in [*project["dependencies"], *extras]} - {"glassformer"}:
        assert f"\n{name}==" in pinned, f"constraints.txt does not pin {name}"


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_demo_installs_less_than_make_test(tmp_path):
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)

    def commands(target):
        result = subprocess.run(["make", "-n", target], cwd=tmp_path, capture_output=True, text=True, check=True)
        return [line.rpartition(" -e ")[2] for line in result.stdout.splitlines() if "pip install" in line]

    assert commands("demo") == ["."]
    assert commands("test") == [".", "'.[all]'"]
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / ".ready-demo").touch()
    assert commands("demo") == []
    assert commands("test") == ["'.[all]'"], "the demo's packages are not all that the tests need"


def test_the_reference_imports_with_numpy_alone(tmp_path):
    bare_environment(tmp_path, {"numpy"})
    result = run_alone(tmp_path, "import glassformer.reference.__main__")
    assert result.returncode == 0, result.stderr
    assert "No module named 'torch'" in run_alone(tmp_path, "import torch").stderr


def test_the_public_names_are_the_documented_ones():
    import glassformer

    assert glassformer.MultiHeadAttention.__module__ == "glassformer.documents.blocks"
    assert glassformer.inspect.draw_positions
    assert sorted(glassformer.__all__) == sorted(set(glassformer.__all__))
    with pytest.raises(AttributeError, match="no attribute 'Transfomer'"):
        glassformer.Transfomer  # noqa: B018


def test_no_file_is_read_or_written_in_the_encoding_of_the_locale():
    """Not in tests either: they must pass in any locale."""
    wrong = []
    others = [path for folder in ("tests", "tools", "examples") for path in (ROOT / folder).rglob("*.py")]
    for path in [*FILES, *others]:
        for node in nodes_of(path):
            is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            if not is_call or node.func.attr not in ("read_text", "write_text"):
                continue
            is_path = len(node.args) == (0 if node.func.attr == "read_text" else 1)
            if is_path and not {"encoding", None} & {keyword.arg for keyword in node.keywords}:
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not wrong


def named_twice(names):
    """Names that stand for several things, each with where they stand."""
    return {name: sorted(map(str, places)) for name, places in names.items() if len(places) > 1}


SHARED_NAMES = {"documents", "reference"}
"""Packages that use the names of the papers, whatever the rest of the package calls its own things."""


def test_no_two_modules_share_a_name():
    modules = {}
    for path in FILES:
        if package_of(path) not in SHARED_NAMES and path.name not in ("__init__.py", "__main__.py"):
            modules.setdefault(path.stem, []).append(path.relative_to(SOURCE))
    assert named_twice(modules) == {}


def test_no_two_classes_share_a_name():
    classes = {}
    for path in FILES:
        if package_of(path) not in SHARED_NAMES:
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    classes.setdefault(node.name, []).append(path.relative_to(SOURCE))
    assert named_twice(classes) == {}


def imported_modules(path, modules):
    """Modules of the package that a file imports: at the top, inside functions, or for type hints."""
    for node in nodes_of(path):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in modules else node.module


def test_no_modules_import_each_other_in_a_circle():
    names = {path: ".".join(("glassformer", *path.relative_to(SOURCE).with_suffix("").parts)) for path in FILES}
    modules = {name.removesuffix(".__init__"): path for path, name in names.items()}
    del modules["glassformer"]  # it imports everything
    graph = {name: {*imported_modules(path, modules)} & {*modules} - {name} for name, path in modules.items()}
    graphlib.TopologicalSorter(graph).prepare()
