"""docs/serve.md: every curl command is run against a server, and every flag and address that it names exists."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "serve.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```console\n(.*?)```", PAGE, re.S)
COMMANDS = [command for block in BLOCKS for command in re.findall(r"^\$ (.*(?:\n(?!\$ ).*)*)", block, re.M)]
CURLS = [command for command in COMMANDS if command.startswith("curl")]


@pytest.mark.parametrize("command", CURLS, ids=range(len(CURLS)))
def test_a_curl_command_is_answered(command, server):
    local = command.replace("127.0.0.1:8000", f"127.0.0.1:{server.port}")
    ended = subprocess.run(
        ["bash", "-c", local.replace("curl ", "curl -sS --fail-with-body --max-time 60 ", 1)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, f"{command}\n{ended.stdout}{ended.stderr}"
    assert ended.stdout


def test_there_are_commands():
    assert len(CURLS) >= 10
    assert sum("glassformer serve" in command for command in COMMANDS) >= 3


def test_the_flags_and_addresses_of_the_page_exist(server):
    told = "".join(
        subprocess.run(
            [sys.executable, "-m", "glassformer", verb, "--help"], capture_output=True, text=True, check=True
        ).stdout
        for verb in ("serve", "chat")
    )
    for flag in {*re.findall(r"`(--[a-z-]+)", PAGE)} - {"--json"}:
        assert flag in told, flag
    paths = server.ask("/openapi.json")[2]["paths"]
    for path in {*re.findall(r"127\.0\.0\.1:8000(/[a-z0-9/]+)", PAGE)} - {"/v1"}:
        assert path in paths or re.sub("/v1/tasks/.*", "/v1/tasks/{name}", path) in paths, path


def test_the_error_of_the_page_is_the_servers(server):
    body = {"model": "chat", "prompt": "a", "temperature": -1}
    found = server.ask("/v1/completions", body)[2]["error"]
    assert f'"message": "{found["message"]}"' in PAGE
    assert f'"code": "{found["code"]}"' in PAGE


def test_the_files_of_deploy_are_documented_and_name_what_exists():
    docker = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
    for source in re.findall(r"^COPY (.*) \S+$", docker, re.M):
        for name in source.split():
            assert (ROOT / name).exists(), name
    assert 'ENTRYPOINT ["glassformer", "serve"' in docker
    unit = (ROOT / "deploy" / "glassformer.service").read_text(encoding="utf-8")
    assert re.search(r"^ExecStart=\S+/glassformer serve ", unit, re.M)
    for text in (docker, unit):
        assert text.startswith("#"), "the first lines say how to use it"
