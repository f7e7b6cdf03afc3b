"""The cache of compiled kernels: a library is complete or built again, also after kills and in several processes."""

import fcntl
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from glassformer.kernels import build_cache
from glassformer.kernels.build_cache import built_library, find_library, why_not_cached
from glassformer.kernels.cpp_library import KernelBuildError

NAME = "cpu-0123456789abcdef"
CONTENTS = b"a library" * 1000


@pytest.fixture
def built():
    """The libraries that `build` has written."""
    return []


@pytest.fixture
def build(built):
    def write(library):
        (library.parent / "half.o").write_bytes(CONTENTS[:100])
        library.write_bytes(CONTENTS)
        built.append(library)

    return write


def use(build):
    with built_library(NAME, build) as library:
        assert library.read_bytes() == CONTENTS
    return library


def test_a_library_is_built_once(folder, build, built):
    assert use(build) == use(build)
    assert len(built) == 1
    assert sorted(path.suffix for path in folder.iterdir()) == [".lock", ".so"]


@pytest.mark.parametrize("damage", [b"", CONTENTS[:-1], CONTENTS[:4096], CONTENTS + b"\0", b"\0" * len(CONTENTS)])
def test_a_damaged_library_is_built_again(folder, build, built, damage):
    library = use(build)
    library.write_bytes(damage)
    assert find_library(folder, NAME) is None
    use(build)
    assert len(built) == 2
    use(build)
    assert len(built) == 2, "the new library is kept"


def test_a_failed_build_leaves_only_its_lock(folder, build):
    def fail(library):
        library.write_bytes(CONTENTS[:10])
        raise KernelBuildError("by hand")

    with pytest.raises(KernelBuildError, match="by hand"):
        use(fail)
    assert [path.suffix for path in folder.iterdir()] == [".lock"]
    use(build)


def test_of_many_threads_one_builds(build, built, folder):
    def slow(library):
        library.write_bytes(CONTENTS[:100])
        time.sleep(0.02)
        build(library)

    threads = [threading.Thread(target=use, args=(slow,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1


def test_build_folders_of_killed_processes_are_removed(folder, build):
    library = use(build)
    left = folder / f"build-{NAME}-abcd1234"
    left.mkdir()
    (left / "half.so").write_bytes(CONTENTS[:10])
    busy = folder / "build-cpu-ffffffffffffffff-abcd1234"
    busy.mkdir()
    old, young, other = (folder / f"tmp{letter * 8}" for letter in "abc")
    for path in (old, young, other):
        path.mkdir()
        (path / f"{NAME}.so").touch()
    (other / "diary.txt").write_text("not ours", encoding="utf-8")
    for path in (old, other):
        os.utime(path, (0, 0))
    with (folder / "cpu-ffffffffffffffff.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as another process does while it builds
        assert use(build) == library
        assert not left.exists()
        assert busy.exists()
    assert not old.exists()
    assert young.exists()
    assert other.exists()
    use(build)
    assert not busy.exists(), "its lock is free now"


@pytest.mark.parametrize("why", ["a file has its name", "no home"])
def test_without_a_cache_folder_a_temporary_one_is_used(why, folder, build, monkeypatch, caplog):
    if why == "no home":
        for name in ("GLASSFORMER_CACHE", "XDG_CACHE_HOME"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(Path, "home", _no_home)
    else:
        folder.parent.parent.joinpath("cache").write_text("in the way", encoding="utf-8")
    library = use(build)
    assert not library.exists(), "it is removed after use"
    assert not library.parent.exists()
    assert ["GLASSFORMER_CACHE" in record.message for record in caplog.records] == [True]


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o1777])
def test_a_folder_that_others_may_write_is_not_used(folder, build, built, caplog, mode):
    library = use(build)
    folder.chmod(mode)
    assert use(build) != library
    assert len(built) == 2
    assert [f"run chmod 700 {folder}" in record.message for record in caplog.records] == [True]
    assert f"run chmod 700 {folder}" in why_not_cached()
    folder.chmod(0o700)
    assert why_not_cached() is None
    assert use(build) == library
    assert len(caplog.records) == 1


def test_whether_a_library_would_be_kept_is_told_before_it_is_built(folder, monkeypatch):
    assert why_not_cached() is None
    assert not folder.exists(), "nothing was created"
    monkeypatch.setattr(build_cache.os, "access", lambda path, mode: False)
    assert why_not_cached().endswith("cannot be written")
    monkeypatch.undo()
    folder.parent.write_text("in the way", encoding="utf-8")
    monkeypatch.setenv("GLASSFORMER_CACHE", str(folder.parent))
    assert why_not_cached() is not None


def test_a_folder_of_another_user_is_not_used(folder, build, built, caplog, monkeypatch):
    library = use(build)
    monkeypatch.setattr(build_cache.os, "geteuid", lambda: folder.stat().st_uid + 1)
    assert use(build) != library
    assert len(built) == 2
    assert ["belongs to user" in record.message for record in caplog.records] == [True]


def test_the_folder_and_the_library_are_private_whatever_the_umask(folder, build, caplog):
    usual = os.umask(0o000)
    try:
        library = use(build)
    finally:
        os.umask(usual)
    assert [path.stat().st_mode & 0o077 for path in (folder, library)] == [0, 0]
    assert not caplog.records


@pytest.mark.parametrize("change", ["others may write it", "it is a link"])
def test_a_library_that_others_may_change_is_built_again(folder, build, built, change, tmp_path):
    library = use(build)
    if change == "it is a link":
        library.replace(tmp_path / "elsewhere.so")
        library.symlink_to(tmp_path / "elsewhere.so")
    else:
        library.chmod(0o666)
    assert find_library(folder, NAME) is None
    use(build)
    assert len(built) == 2
    assert library.is_file()
    assert not library.is_symlink()


def test_a_folder_mounted_noexec_is_not_used(folder, build, built, caplog, monkeypatch):
    def statvfs(path):
        return SimpleNamespace(f_flag=os.ST_NOEXEC if path == folder else 0)

    monkeypatch.setattr(build_cache.os, "statvfs", statvfs)
    library = use(build)
    assert library.parent != folder
    assert len(built) == 1
    assert ["mounted with noexec" in record.message for record in caplog.records] == [True]


def test_a_folder_that_cannot_be_written_is_not_used(folder, build, caplog, monkeypatch):
    folder.mkdir(parents=True, mode=0o700)

    def fail(*_, **__):
        raise OSError(30, "Read-only file system", str(folder))

    monkeypatch.setattr(build_cache, "_locked", fail)
    assert use(build).parent != folder
    assert ["Read-only file system" in record.message for record in caplog.records] == [True]


def test_an_error_while_loading_is_not_reported_as_an_error_of_the_cache(folder, build, caplog):
    folder.mkdir(parents=True, mode=0o700)
    folder.chmod(0o777)
    with pytest.raises(OSError, match="by hand"), built_library(NAME, build):
        raise OSError("by hand")
    assert not caplog.records, "the caller reports it"


def _no_home():
    raise RuntimeError("Could not determine home directory.")


def test_a_library_is_built_on_a_file_system_without_locks(folder, build, monkeypatch):
    def fail(*_):
        raise OSError("no locks available")

    monkeypatch.setattr(fcntl, "flock", fail)
    assert use(build).parent == folder
