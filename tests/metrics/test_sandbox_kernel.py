"""The Linux calls of the sandbox, each tried in a process of its own."""

import json
import os
import subprocess
import sys

import pytest

from glassformer.metrics import sandbox_kernel

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has these calls")

PREPARE = """
import json, os, socket, sys
sys.path.insert(0, sys.argv[1])
import sandbox_kernel as kernel

def refused(action):
    try:
        action()
    except PermissionError:
        return True
    return False
"""


def run(program, *arguments):
    """Run a program in an isolated Python and return the JSON value that it prints."""
    command = [sys.executable, "-I", "-S", "-B", "-c", PREPARE + program]
    result = subprocess.run(
        [*command, os.path.dirname(sandbox_kernel.__file__), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_library_paths_hold_pythons_library_and_none_is_inside_another():
    paths = sandbox_kernel.library_paths()
    assert any(os.path.realpath(os.__file__).startswith(path.rstrip("/") + "/") for path in paths)
    assert "/" not in paths
    assert all(os.path.exists(path) for path in paths)
    assert not any(one != other and one.startswith(other + "/") for one in paths for other in paths)


def test_seccomp_refuses_sockets_and_signals():
    program = """
before = [refused(socket.socket), refused(lambda: os.kill(os.getppid(), 0))]
kernel.drop_capabilities()
in_force = kernel.restrict_calls(signals=True)
after = [refused(socket.socket), refused(lambda: os.kill(os.getppid(), 0))]
print(json.dumps([in_force, before, after]))
"""
    in_force, before, after = run(program)
    if not in_force:
        pytest.skip("this machine has no seccomp")
    assert before == [False, False]
    assert after == [True, True]


def test_landlock_allows_the_folder_and_refuses_other_files(tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "other").write_text("other", encoding="utf-8")
    program = """
kernel.drop_capabilities()
version = kernel.restrict_files([], sys.argv[2])
print(json.dumps([
    version,
    refused(lambda: open(sys.argv[2] + "/new", "w")),
    refused(lambda: open(sys.argv[3])),
    refused(lambda: open(sys.argv[3], "a")),
]))
"""
    version, work, read, write = run(program, tmp_path / "work", tmp_path / "other")
    if not version:
        pytest.skip("this machine has no Landlock")
    assert (work, read, write) == (False, True, True)


def test_a_namespace_is_new_exactly_if_it_is_reported_as_entered():
    program = """
def network():
    return os.stat("/proc/self/ns/net").st_ino

before, has_user = network(), kernel.enter_user_namespace()
print(json.dumps([has_user, kernel.enter_namespace("net"), network() != before, os.geteuid()]))
"""
    has_user, entered, is_new, user = run(program)
    assert entered == is_new
    assert user == os.geteuid() or not has_user
