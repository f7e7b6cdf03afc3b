"""The cache of compiled kernels: whole or built again, whatever other processes, kills and full disks do to it."""

import fcntl
import os
import threading
import time
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn

from glassformer.kernels import cpp_library
from glassformer.kernels import kernel_registry as registry
from glassformer.kernels.build_cache import built_library, find_library
from glassformer.kernels.cpp_library import KernelBuildError, UnsupportedCPUError
from glassformer.runtime import int8

NAME = "cpu-0123456789abcdef"
CONTENTS = b"a library" * 1000


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("GLASSFORMER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kernels"


@pytest.fixture
def built():
    """A compiler that counts its calls, by `len`."""
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
    assert len(built) == 2, "the new one is kept"


def test_a_build_that_fails_leaves_nothing(folder, build):
    def fail(library):
        library.write_bytes(CONTENTS[:10])
        raise KernelBuildError("by hand")

    with pytest.raises(KernelBuildError, match="by hand"):
        use(fail)
    assert [path.suffix for path in folder.iterdir()] == [".lock"]
    use(build)


def test_many_build_at_once_and_one_does(build, built, folder):
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


def test_what_a_killed_process_left_is_removed(folder, build):
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
        fcntl.flock(lock, fcntl.LOCK_EX)  # as the process that builds holds it
        assert use(build) == library
        assert not left.exists()
        assert busy.exists()
    assert not old.exists()
    assert young.exists()
    assert other.exists()
    use(build)
    assert not busy.exists(), "nobody holds its lock any more"


@pytest.mark.parametrize("why", ["a file in the way", "no home"])
def test_without_a_cache_folder_a_temporary_one_is_used(why, folder, build, monkeypatch, caplog):
    if why == "no home":
        for name in ("GLASSFORMER_CACHE", "XDG_CACHE_HOME"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(Path, "home", _no_home)
    else:
        folder.parent.parent.joinpath("cache").write_text("in the way", encoding="utf-8")
    library = use(build)
    assert not library.exists(), "it was removed after its use"
    assert not library.parent.exists()
    assert ["GLASSFORMER_CACHE" in record.message for record in caplog.records] == [True]


def _no_home():
    raise RuntimeError("Could not determine home directory.")


def test_without_locks_a_library_is_built_all_the_same(folder, build, monkeypatch):
    def refuse(*_):
        raise OSError("no locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert use(build).parent == folder


@pytest.fixture
def fresh(monkeypatch, folder):
    """No kernels are loaded, nor known to be missing."""
    monkeypatch.setattr(registry, "_load_once", cache(registry._load_once.__wrapped__))
    monkeypatch.setattr(registry, "_warn_once", cache(registry._warn_once.__wrapped__))
    monkeypatch.setattr(cpp_library, "_cpu_flags", lambda: ())


BROKEN = {
    "/bin/false": "#!/bin/sh\nexit 1\n",
    "one that says why": "#!/bin/sh\necho 'x.cpp: error: by hand' >&2\nexit 1\n",
    "one that writes nothing": "#!/bin/sh\nexit 0\n",
    "no program": "\0\1\2\3",
    "one that writes no library": '#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho x > "$2"\n',
}


@pytest.mark.parametrize("compiler", [*BROKEN, "none"])
def test_without_a_compiler_torchs_kernels_are_used(fresh, compiler, monkeypatch, tmp_path, caplog):
    monkeypatch.delenv("CXX", raising=False)
    if compiler == "none":
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        program = tmp_path / "compiler"
        program.write_text(BROKEN[compiler], encoding="utf-8")
        program.chmod(0o755)
        monkeypatch.setenv("CXX", str(program))
    with pytest.raises(KernelBuildError, match=r"compile|cannot be used"):
        registry.cpp_kernels()
    if not int8.torch_int8_engine():
        pytest.skip("torch has no int8 products here")
    model = nn.Sequential(nn.Linear(32, 16))
    x = torch.randn(3, 32)
    with torch.inference_mode():
        torch.testing.assert_close(int8.quantize(model)(x), model(x), rtol=0, atol=0.05)
    told = [record.message for record in caplog.records]
    assert len(told) == 1
    assert "torch's own kernels" in told[0]


def test_a_cpu_without_kernels_needs_no_warning(fresh, monkeypatch, caplog):
    def refuse():
        raise UnsupportedCPUError("by hand")

    monkeypatch.setattr(cpp_library, "_cpu_flags", refuse)
    if not int8.torch_int8_engine():
        pytest.skip("torch has no int8 products here")
    assert int8._choose_layer() is int8.TorchInt8Linear
    assert not caplog.records


def test_where_nothing_computes_int8_the_reason_is_told(fresh, monkeypatch):
    monkeypatch.setattr(int8, "torch_int8_engine", lambda: "")
    monkeypatch.setenv("CXX", "/bin/false" if Path("/bin/false").exists() else "false")
    with pytest.raises(KernelBuildError, match="could not be compiled"):
        int8.quantize(nn.Linear(2, 2))


def test_a_failed_build_is_tried_once_warned_of_once_and_replaced_by_plain_torch(fresh, monkeypatch, caplog):
    attempts = []

    def fail():
        attempts.append(1)
        raise KernelBuildError("by hand")

    monkeypatch.setattr(registry, "load_cpp_library", fail)
    for _ in range(3):
        assert registry.kernels_for(torch.device("cpu"), compiled=True) is registry.PLAIN
    assert len(attempts) == 1
    assert [record.message for record in caplog.records] == ["torch's own kernels are used, which are slower: by hand"]
