"""The files that people and services look for: they can be parsed, and what they name exists."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOW = ".github/workflows/ci.yml"
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
PROSE = ["SECURITY.md", "CONTRIBUTING.md", ".github/pull_request_template.md"]
TEXTS = [*PROSE, WORKFLOW, ".pre-commit-config.yaml", *(str(path.relative_to(ROOT)) for path in FORMS)]


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def parse(name):
    return yaml.load(read(name), Loader=yaml.BaseLoader)  # every value a text: `on` is no boolean, 3.10 no number


def is_make_target(name):
    return re.search(rf"^{re.escape(name)}:", read("Makefile"), re.M) is not None


def test_the_workflow_runs_what_must_be_green_on_both_python_versions():
    workflow = parse(WORKFLOW)
    job = workflow["jobs"]["test"]
    assert {"push", "pull_request"} <= set(workflow["on"])
    assert workflow["permissions"] == {"contents": "read"}
    assert job["strategy"]["matrix"]["python-version"] == ["3.11", "3.12"]
    assert PROJECT["requires-python"] == ">=3.11"
    commands = [step["run"] for step in job["steps"] if "run" in step]
    assert commands == [".ci/run"]
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_hooks_use_the_tools_of_the_project_and_fetch_nothing():
    for repository in parse(".pre-commit-config.yaml")["repos"]:
        assert repository["repo"] == "local"
        for hook in repository["hooks"]:
            assert {"id", "name", "entry", "language"} <= set(hook)
            assert hook["language"] == "system"
            program, *targets = hook["entry"].split()
            assert program == "make"
            assert targets
            assert all(is_make_target(target) for target in targets)


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_issue_forms_have_what_a_form_needs(path):
    form = parse(path)
    assert {"name", "description", "body"} <= set(form)
    ids = [field["id"] for field in form["body"] if field["type"] != "markdown"]
    assert ids
    assert len(ids) == len(set(ids))
    for field in form["body"]:
        assert field["type"] in ("markdown", "textarea", "input", "dropdown", "checkboxes")
        assert field["attributes"]["value" if field["type"] == "markdown" else "label"]
    assert any(field.get("validations", {}).get("required") == "true" for field in form["body"])


def test_there_is_a_form_for_bugs_and_one_for_features():
    assert [path.name for path in FORMS] == ["bug.yml", "feature.yml"]


def test_the_citation_agrees_with_the_package():
    citation = parse("CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert citation["message"]
    assert citation["authors"]
    assert citation["title"].lower() == PROJECT["name"]
    for ours, theirs in (("version", "version"), ("license", "license"), ("abstract", "description")):
        assert citation[ours] == PROJECT[theirs]
    assert citation["keywords"] == PROJECT["keywords"]


@pytest.mark.parametrize("name", TEXTS)
def test_commands_that_the_files_name_exist(name):
    for command in re.findall(r"\bmake ((?:[a-z-]+ ?)+)`", read(name)):
        for target in command.split():
            assert is_make_target(target), target
    for option in re.findall(r"`glassformer (-\S+)`", read(name)):
        result = subprocess.run(
            [sys.executable, "-m", "glassformer", option], capture_output=True, text=True, check=False
        )
        assert result.stdout.startswith("glassformer "), result.stderr


@pytest.mark.parametrize("name", PROSE)
def test_files_that_the_pages_name_exist(name):
    for target in re.findall(r"\]\(([^)#]+)\)", read(name)):
        assert "://" in target or (ROOT / name).parent.joinpath(target).exists(), target
    for target in re.findall(r"`([\w./-]+\.(?:md|txt|toml)|[\w-]+/[\w./-]+)`", read(name)):
        assert (ROOT / target).exists(), target
