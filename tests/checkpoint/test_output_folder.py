"""Output folders: what may be replaced, the state after a kill, and locks."""

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import glassformer.checkpoint.output_folder as output_folder
from glassformer.checkpoint import (
    OutputExistsError,
    load_model,
    new_folder,
    save_model,
    verify_folder,
)
from glassformer.checkpoint.output_folder import FolderInUseError, check_output_file, clean_leftovers, lock_folder
from glassformer.checkpoint.safe_files import CorruptFolderError, SealedFolder
from glassformer.models import preset
from oracle import random_model


def write(path, text="new", **how):
    with new_folder(path, **how) as work:
        (work / "a").write_text(text, encoding="utf-8")


def test_files_that_glassformer_did_not_write_are_never_replaced(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work", encoding="utf-8")
    for overwrite in (False, True):
        with pytest.raises(OutputExistsError, match=r"out holds files that Glassformer did not write \(thesis.txt\)"):
            write(folder, overwrite=overwrite)
    assert [(file.name, file.read_text(encoding="utf-8")) for file in folder.iterdir()] == [
        ("thesis.txt", "years of work")
    ]


def test_a_file_is_never_replaced_by_a_folder(tmp_path):
    (tmp_path / "out").write_text("a file", encoding="utf-8")
    with pytest.raises(OutputExistsError, match="is a file"):
        write(tmp_path / "out", overwrite=True)
    assert (tmp_path / "out").read_text(encoding="utf-8") == "a file"


def test_another_model_is_replaced_only_when_asked(tmp_path):
    folder = tmp_path / "out"
    write(folder, "first", owner="one run")
    with pytest.raises(OutputExistsError, match="--overwrite"):
        write(folder, owner="another run")
    with pytest.raises(OutputExistsError, match="--overwrite"):
        write(folder)
    write(folder, "second", owner="one run")
    assert (folder / "a").read_text(encoding="utf-8") == "second"
    write(folder, "third", overwrite=True)
    assert (folder / "a").read_text(encoding="utf-8") == "third"
    verify_folder(folder)


def test_a_file_added_beside_a_model_stays_and_stops_the_replacement(tmp_path):
    folder = tmp_path / "out"
    write(folder, "first", owner="run")
    (folder / "notes.md").write_text("mine", encoding="utf-8")
    with pytest.raises(OutputExistsError, match=r"notes\.md"):
        write(folder, "second", owner="run")
    assert ((folder / "a").read_text(encoding="utf-8"), (folder / "notes.md").read_text(encoding="utf-8")) == (
        "first",
        "mine",
    )


def test_a_file_added_while_the_folder_is_written_stays(tmp_path):
    folder = tmp_path / "out"
    write(folder, "first", owner="run")

    def added_meanwhile():
        with new_folder(folder, owner="run") as work:
            (work / "a").write_text("second", encoding="utf-8")
            (folder / "notes.md").write_text("mine", encoding="utf-8")

    with pytest.raises(OutputExistsError, match=r"notes\.md"):
        added_meanwhile()
    assert (folder / "notes.md").read_text(encoding="utf-8") == "mine"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out"]


def test_an_empty_folder_and_a_link_to_one_may_be_written_to(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    write(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "empty" / "a").read_text(encoding="utf-8") == "new"


def test_a_file_of_another_format_is_never_replaced(tmp_path):
    path = tmp_path / "model.gguf"
    check_output_file(path, b"GGUF")
    path.write_bytes(b"thesis")
    with pytest.raises(OutputExistsError, match="another kind"):
        check_output_file(path, b"GGUF", overwrite=True)
    path.write_bytes(b"GGUF rest")
    with pytest.raises(OutputExistsError, match="--overwrite"):
        check_output_file(path, b"GGUF")
    check_output_file(path, b"GGUF", overwrite=True)


KILLED = """
import os, sys
from pathlib import Path
import glassformer.checkpoint.output_folder as output
import glassformer.checkpoint.safe_files as safe

left = {operations}
def count(function):
    def wrapped(*arguments, **options):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), 9)
        return function(*arguments, **options)
    return wrapped

if not {exchange}:
    output._exchange = lambda one, two: False
Path.rename, Path.unlink, Path.rmdir = count(Path.rename), count(Path.unlink), count(Path.rmdir)
output._exchange = count(output._exchange)
with output.new_folder(Path({folder!r}), owner="run") as work:
    (work / "a").write_text("new")
    (work / "b").write_text("new")
"""


@pytest.mark.parametrize("exchange", [True, False])
def test_a_kill_at_any_moment_of_a_replacement_leaves_a_complete_folder(tmp_path, exchange):
    """On systems that cannot exchange two names, the next writer or reader restores the old folder."""
    outcomes = set()
    for operations in range(12):
        folder = tmp_path / str(operations) / "out"
        write(folder, "old", owner="run")
        program = KILLED.format(operations=operations, exchange=exchange, folder=str(folder))
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        if exchange:
            assert folder.is_dir(), "a complete folder has the name at every moment"
        clean_leftovers(folder)
        assert (folder / "a").read_text(encoding="utf-8") in ("old", "new")
        verify_folder(folder)
        assert [file.name for file in folder.parent.iterdir()] == ["out"], "nothing is left beside it"
        outcomes.add(((folder / "a").read_text(encoding="utf-8"), done.returncode))
        if done.returncode == 0:
            break
    assert {("old", -9), ("new", -9), ("new", 0)} <= outcomes, "kills before and after the replacement"


def test_a_model_that_a_kill_left_under_a_temporary_name_is_restored(tmp_path):
    model = random_model(preset("tiny-gpt2"), dtype=torch.float32)
    save_model(tmp_path / "m", model)
    (tmp_path / "m").rename(tmp_path / ".m.old")
    assert load_model(tmp_path / "m").config == model.config


def test_the_folder_of_a_running_writer_is_not_removed(tmp_path):
    folder = tmp_path / "out"
    with new_folder(folder) as work:
        (work / "a").write_text("one", encoding="utf-8")
        clean_leftovers(folder)
        assert (work / "a").is_file()


@pytest.mark.skipif(output_folder.fcntl is None, reason="the system has no file locks")
def test_a_locked_folder_is_refused_until_the_holder_ends(tmp_path):
    program = "import sys, pathlib; from glassformer.checkpoint.output_folder import lock_folder\n"
    program += "with lock_folder(pathlib.Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(FolderInUseError, match=f"in use by process {holder.pid}"), lock_folder(tmp_path):
            pass
    finally:
        holder.kill()
        holder.wait()
        holder.stdin.close()
        holder.stdout.close()
    with lock_folder(tmp_path):
        pass


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o077])
def test_all_files_have_the_mode_of_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        save_model(tmp_path / "m", random_model(preset("tiny-gpt2"), dtype=torch.float32), {"README.md": "a card"})
    finally:
        os.umask(before)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in Path(tmp_path / "m").iterdir()}
    assert set(modes.values()) == {0o666 & ~umask}, modes
    assert stat.S_IMODE((tmp_path / "m").stat().st_mode) == 0o777 & ~umask


def test_impossible_output_names_are_refused_at_the_start(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OutputExistsError, match="is the current folder"):
        write(Path("."))
    with pytest.raises(OutputExistsError, match="expected the name of a new folder, of at most"):
        write(tmp_path / ("x" * 250))
    with pytest.raises(OutputExistsError, match="expected the name of a new folder"):
        write(Path("/"))
    monkeypatch.setattr(Path, "is_mount", lambda path: path.name == "mounted")
    (tmp_path / "mounted").mkdir()
    with pytest.raises(OutputExistsError, match="is a mount point"):
        write(tmp_path / "mounted")


def test_a_failed_write_keeps_the_old_folder(tmp_path):
    path = tmp_path / "folder"
    with new_folder(path) as work:
        (work / "a").write_text("old", encoding="utf-8")

    def fail():
        with new_folder(path, overwrite=True) as work:
            (work / "a").write_text("half", encoding="utf-8")
            raise RuntimeError("by hand")

    with pytest.raises(RuntimeError, match="by hand"):
        fail()
    assert (path / "a").read_text(encoding="utf-8") == "old"
    verify_folder(path)
    with new_folder(path, overwrite=True) as work:
        (work / "a").write_text("new", encoding="utf-8")
    assert (path / "a").read_text(encoding="utf-8") == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def test_folders_inside_are_sealed_and_replaced(tmp_path):
    folder = tmp_path / "out"
    for text in ("first", "second"):
        with new_folder(folder, overwrite=True) as work:
            (work / "inner").mkdir()
            (work / "inner" / "b").write_text(text, encoding="utf-8")
    assert verify_folder(folder).file("inner/b").read_text(encoding="utf-8") == "second"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out"]
    write(folder, overwrite=True)  # without the inner folder
    assert sorted(file.name for file in folder.iterdir()) == ["a", "manifest.json"]


def test_a_manifest_cannot_name_files_to_remove_elsewhere(tmp_path):
    folder, other = tmp_path / "out", tmp_path / "other"
    other.mkdir()
    (other / "thesis").write_text("mine", encoding="utf-8")
    write(folder)
    (folder / "link").symlink_to(other)
    listed = {"a": "0" * 64, "../other/thesis": "0" * 64, "link/thesis": "0" * 64}
    (folder / "manifest.json").write_text(json.dumps({"sha256": listed}), encoding="utf-8")
    with pytest.raises(OutputExistsError, match="link"):
        write(folder, overwrite=True)
    with pytest.raises(CorruptFolderError, match="expected a plain file name"):
        verify_folder(folder)
    del listed["../other/thesis"]
    (folder / "manifest.json").write_text(json.dumps({"sha256": listed}), encoding="utf-8")
    with pytest.raises(CorruptFolderError, match="link is a link: expected a folder"):
        SealedFolder(folder).file("link/thesis")
    assert (other / "thesis").read_text(encoding="utf-8") == "mine"
