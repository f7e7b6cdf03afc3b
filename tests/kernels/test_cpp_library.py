"""Compiling and loading the C++ kernels, and what happens where that is impossible."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from glassformer.kernels import build_cache, cpp_library, kernel_registry
from glassformer.kernels.cpp_library import KernelBuildError, UnsupportedCPUError
from glassformer.nn import quantized_linear
from glassformer.runtime import quantized_model


@pytest.fixture
def cpu(monkeypatch):
    """A function that makes this CPU look like another one."""

    def pretend(machine, *, dot=False, avx2=False, avx512=False, vnni=False, amx=False):
        monkeypatch.delenv(cpp_library.CHOICE_VARIABLE, raising=False)
        monkeypatch.setattr(cpp_library.os, "name", "posix")
        monkeypatch.setattr(cpp_library.platform, "machine", lambda: machine)
        monkeypatch.setattr(cpp_library, "_has_dot_products", lambda: dot)
        monkeypatch.setattr(torch.cpu, "_is_avx2_supported", lambda: avx2)
        monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: vnni)
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: amx)
        capability = "AVX512" if avx512 else "AVX2" if avx2 else "DEFAULT"
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)

    return pretend


def test_a_cpu_without_the_needed_instructions_is_refused_by_name(cpu):
    for machine in ("x86_64", "riscv64"):
        cpu(machine)
        with pytest.raises(KernelBuildError, match=rf"no C\+\+ kernels for this CPU \({machine}\)"):
            cpp_library.wanted_sets()


@pytest.mark.parametrize(
    ("machine", "has", "sets"),
    [
        ("x86_64", {"avx2": True, "avx512": True, "vnni": True, "amx": True}, ["amx", "vnni", "avx512", "avx2"]),
        ("x86_64", {"avx2": True, "vnni": True}, ["vnni", "avx512", "avx2"]),
        ("x86_64", {"avx2": True, "avx512": True}, ["avx512", "avx2"]),
        ("AMD64", {"avx2": True}, ["avx2"]),
        ("aarch64", {"dot": True}, ["dotprod", "neon"]),
        ("arm64", {}, ["neon"]),
    ],
)
def test_the_instruction_sets_follow_the_cpu(cpu, machine, has, sets):
    cpu(machine, **has)
    assert cpp_library.wanted_sets() == sets


def test_the_environment_variable_names_the_instruction_set(cpu, monkeypatch):
    cpu("x86_64", avx2=True, vnni=True)
    every = ["vnni", "avx512", "avx2"]
    for asked, sets in (("auto", every), ("", every), ("avx2", ["avx2"])):
        monkeypatch.setenv("GLASSFORMER_CPU_KERNELS", asked)
        assert cpp_library.wanted_sets() == sets
    for asked in ("amx", "neon", "fast"):
        monkeypatch.setenv("GLASSFORMER_CPU_KERNELS", asked)
        with pytest.raises(KernelBuildError, match=f"{asked}: this CPU runs vnni, avx512, avx2"):
            cpp_library.wanted_sets()
    monkeypatch.setenv("GLASSFORMER_CPU_KERNELS", "none")
    with pytest.raises(UnsupportedCPUError, match=r"turns the C\+\+ kernels off"):
        cpp_library.wanted_sets()


BROKEN_COMPILERS = {
    "a silent failure": "#!/bin/sh\nexit 1\n",
    "an error message": "#!/bin/sh\necho 'x.cpp: error: by hand' >&2\nexit 1\n",
    "no output file": "#!/bin/sh\nexit 0\n",
    "not a program": "\0\1\2\3",
    "a file that is no library": '#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho x > "$2"\n',
}


@pytest.mark.parametrize("compiler", [*BROKEN_COMPILERS, "none"])
def test_int8_uses_torchs_kernels_without_a_working_compiler(
    no_kernels_loaded, compiler, monkeypatch, tmp_path, caplog
):
    monkeypatch.delenv("CXX", raising=False)
    if compiler == "none":
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        program = tmp_path / "compiler"
        program.write_text(BROKEN_COMPILERS[compiler], encoding="utf-8")
        program.chmod(0o755)
        monkeypatch.setenv("CXX", str(program))
    with pytest.raises(KernelBuildError, match=r"compile|cannot be used"):
        kernel_registry.cpp_kernels()
    if not quantized_linear.torch_int8_engine():
        pytest.skip("torch has no int8 products here")
    model = nn.Sequential(nn.Linear(32, 16))
    x = torch.randn(3, 32)
    with torch.inference_mode():
        torch.testing.assert_close(quantized_model.quantize(model)(x), model(x), rtol=0, atol=0.05)
    warnings = [record.message for record in caplog.records]
    assert len(warnings) == 1
    assert "torch's own kernels" in warnings[0]


def test_without_any_int8_kernel_the_build_error_is_raised(no_kernels_loaded, monkeypatch):
    monkeypatch.setattr(quantized_linear, "torch_int8_engine", lambda: "")
    monkeypatch.setenv("CXX", "/bin/false" if Path("/bin/false").exists() else "false")
    with pytest.raises(KernelBuildError, match="could not be compiled"):
        quantized_model.quantize(nn.Linear(2, 2))


def test_cxx_may_name_a_compiler_with_arguments_and_a_missing_one_is_skipped(monkeypatch, tmp_path):
    for name in ("g++", "ccache"):
        (tmp_path / name).write_text("#!/bin/sh\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "ccache clang++ -Wall")
    assert cpp_library._compiler() == [str(tmp_path / "ccache"), "clang++", "-Wall"]
    monkeypatch.setenv("CXX", "missing-compiler")
    assert cpp_library._compiler() == [str(tmp_path / "g++")]


OLD_COMPILER = """#!/bin/sh
for flag in "$@"; do
  case "$flag" in {refused}) echo "old: error: unrecognized command-line option $flag" >&2; exit 1;; esac
done
echo "$@" > {log}
while [ "$1" != -o ]; do shift; done
echo library > "$2"
"""


@pytest.fixture
def load_by(no_kernels_loaded, monkeypatch, tmp_path):
    """A function that loads a pretended library by a compiler that refuses some flags; it returns the accepted ones."""

    def load(sets, refused):
        program, log = tmp_path / "old", tmp_path / "flags"
        program.write_text(OLD_COMPILER.format(refused=refused, log=log), encoding="utf-8")
        program.chmod(0o755)
        monkeypatch.setenv("CXX", str(program))
        monkeypatch.setattr(cpp_library, "supported_sets", lambda: sets)
        monkeypatch.setattr(torch.ops, "load_library", lambda path: None)
        monkeypatch.setattr(torch.library, "register_fake", lambda *_: None)
        cpp_library.load_cpp_library()
        return log.read_text(encoding="utf-8")

    return load


@pytest.mark.parametrize(
    ("refused", "accepted", "missing", "message"),
    [
        ("-mamx*", "-mavx512vnni", "-mamx-tile", "compiled for vnni (the"),
        ("-mamx*|-mavx512vnni", "-mavx512bw", "-mavx512vnni", "compiled for avx512 (the"),
        ("-mamx*|-mavx512*", "-mavx2", "-mavx512f", "compiled for avx2 (the"),
        ("-fopenmp", "-mamx-tile", "-fopenmp", "compiled for amx, for one thread (the"),
    ],
)
def test_flags_that_the_compiler_refuses_are_left_out_with_one_warning(
    load_by, caplog, refused, accepted, missing, message
):
    flags = load_by(["amx", "vnni", "avx512", "avx2"], refused)
    assert accepted in flags
    assert missing not in flags
    assert [message in record.message for record in caplog.records] == [True]
    cpp_library.load_cpp_library()
    assert len(caplog.records) == 1, "the library is cached: there is nothing to say"


def test_the_best_flags_are_used_without_a_warning(load_by, caplog):
    assert "-march=armv8.2-a+dotprod -fopenmp" in load_by(["dotprod", "neon"], "-none")
    assert not caplog.records


def test_on_macos_the_kernels_are_compiled_without_openmp(load_by, caplog, monkeypatch):
    monkeypatch.setattr(cpp_library.sys, "platform", "darwin")
    flags = load_by(["dotprod", "neon"], "-fopenmp")
    assert "-march=armv8.2-a+dotprod" in flags
    assert "-Wl,-rpath" in flags
    assert not caplog.records


def test_a_compiler_that_refuses_all_flags_is_reported_by_its_first_error(load_by):
    with pytest.raises(KernelBuildError, match="unrecognized command-line option -O3"):
        load_by(["vnni", "avx2"], "-O3")


def test_a_new_version_of_the_compiler_builds_again(tmp_path):
    program = tmp_path / "g++"
    program.touch()
    before = cpp_library._library_name(["avx2"], [str(program)])
    assert before.startswith("cpu-avx2-")
    assert cpp_library._library_name(["vnni", "avx2"], [str(program)]) != before
    program.write_text("a new version", encoding="utf-8")
    assert cpp_library._library_name(["avx2"], [str(program)]) != before


def test_a_library_that_cannot_be_loaded_anywhere_is_warned_of_once(no_kernels_loaded, monkeypatch, caplog):
    monkeypatch.setattr(build_cache.os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_NOEXEC))
    assert kernel_registry.kernels_for(torch.device("cpu"), compiled=True) is kernel_registry.PLAIN
    assert ["noexec" in record.message for record in caplog.records] == [True]
