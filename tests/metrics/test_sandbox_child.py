"""The processes of the sandbox: their folder, limits and descendants."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("resource", reason="the sandbox needs resource limits")

from glassformer.metrics import sandbox_child


def test_folder_size_counts_files_in_all_folders_and_does_not_follow_links(tmp_path):
    empty = sandbox_child.folder_size(str(tmp_path))
    (tmp_path / "a").write_bytes(bytes(3000))
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "b").write_bytes(bytes(500))
    size = sandbox_child.folder_size(str(tmp_path))
    assert 3500 <= size - empty - os.stat(tmp_path / "below").st_size < 3600
    (tmp_path / "loop").symlink_to(tmp_path)
    assert sandbox_child.folder_size(str(tmp_path)) - size < 1000


def test_too_many_files_count_as_too_many_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(sandbox_child, "MAX_ENTRIES", 5)
    for number in range(6):
        (tmp_path / str(number)).touch()
    assert sandbox_child.folder_size(str(tmp_path)) == sys.maxsize


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="processes are read from /proc")
def test_descendants_include_children_of_children():
    program = "import os, sys; pid = os.fork(); print(os.getpid(), flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        started = {int(child.stdout.readline()), int(child.stdout.readline())}
        found = set(sandbox_child.descendants())
    assert child.pid in started
    assert started <= found
    assert os.getpid() not in found


def test_a_pipe_is_ready_when_written_or_closed():
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    try:
        assert not sandbox_child.is_ready(reading)
        os.write(writing, b"!")
        assert sandbox_child.is_ready(reading)
        assert not sandbox_child.is_ready(reading)
    finally:
        os.close(writing)
    assert sandbox_child.is_ready(reading)
    os.close(reading)
