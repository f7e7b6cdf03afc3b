"""The wheel holds the whole package, and it runs outside the repository."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import glassformer

pytest.importorskip("hatchling", reason="needs the build backend: pip install hatchling")
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = "import hatchling.build, sys; hatchling.build.build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", command, str(folder)], cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_has_every_file_of_the_package(wheel):
    source = ROOT / "src"
    files = [path for path in (source / "glassformer").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert {".cpp", ".h", ".html"} <= {path.suffix for path in files}
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("glassformer/")}
        assert packed == {path.relative_to(source).as_posix() for path in files}
        for path in files:
            assert archive.read(path.relative_to(source).as_posix()) == path.read_bytes()


def test_the_wheel_prints_its_version_without_the_repository(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    program = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); import glassformer\n"
        "assert 'site' in glassformer.__file__, glassformer.__file__\n"
        "from glassformer.cli import main; main()"
    )
    ended = subprocess.run(
        [sys.executable, "-I", "-c", program, str(tmp_path / "site"), "--version"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout == f"glassformer {glassformer.__version__}\n"
