"""The version of the code is the version of the package."""

import tomllib
from pathlib import Path

import glassformer
from glassformer.base.version import __version__

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_the_version_is_that_of_the_project_file():
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    assert glassformer.__version__ == __version__ == project["version"]
