"""The arithmetic of the C++ kernels equals plain loops, on every kind of CPU for which they are compiled.

`check_kernels.cpp` is compiled for each instruction set. The program runs on this CPU, or in QEMU, or with instructions
that are emulated in C++ (`emulated_x86/immintrin.h`), whichever is possible here.
"""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from glassformer.kernels import cpp_library
from glassformer.kernels.cpp_library import ARM, FOLDER, INSTRUCTION_SETS, X86

HERE = Path(__file__).parent
CROSS_COMPILER, EMULATOR = "x86_64-linux-gnu-g++", "qemu-x86_64"
EMULATED = {
    "vnni": ["-D__AVX512F__", "-D__AVX512VNNI__"],
    "amx": ["-D__AVX512F__", "-D__AVX512VNNI__", "-D__AMX_INT8__", "-D__AMX_BF16__"],
}


def compile_and_run(tmp_path, compiler, flags, runner=()):
    source, program = HERE / "check_kernels.cpp", tmp_path / "check"
    subprocess.run([*compiler, "-std=c++20", *flags, f"-I{FOLDER}", str(source), "-o", str(program)], check=True)
    result = subprocess.run([*runner, str(program)], capture_output=True, text=True, check=False)
    assert (result.stdout, result.returncode) == ("ok\n", 0), result.stderr


@pytest.fixture(autouse=True)
def _only_with_all_tests(request):
    if not request.config.getoption("--full"):
        pytest.skip("compiling takes 3 to 30 s: runs with --full")


def need(*programs):
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


def test_avx2_in_an_emulator(tmp_path):
    need(CROSS_COMPILER, EMULATOR)
    flags, library = INSTRUCTION_SETS["avx2"].flags, "/usr/x86_64-linux-gnu"
    compile_and_run(tmp_path, [CROSS_COMPILER], flags, [EMULATOR, "-cpu", "max", "-L", library])


@pytest.mark.parametrize("name", ["vnni", "amx"])
def test_avx512_and_amx_with_emulated_instructions(tmp_path, name):
    need("g++")
    flags = ["-U__aarch64__", *EMULATED[name], f"-I{HERE / 'emulated_x86'}"]
    compile_and_run(tmp_path, ["g++"], flags)


@pytest.mark.parametrize("name", ["avx512", "vnni", "amx"])
def test_avx512_and_amx_compile_without_warnings(tmp_path, name):
    compiler = "g++" if platform.machine() in X86 else CROSS_COMPILER
    need(compiler)
    # GCC 12's header of AVX-512 causes -Wuninitialized warnings.
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-Wno-uninitialized", "-Wno-maybe-uninitialized", "-fopenmp"]
    flags += [*INSTRUCTION_SETS[name].flags, f"-I{FOLDER}", "-std=c++20", "-c"]
    subprocess.run([compiler, *flags, str(HERE / "check_kernels.cpp"), "-o", str(tmp_path / "check.o")], check=True)


@pytest.mark.parametrize("name", [*INSTRUCTION_SETS])
def test_each_instruction_set_of_this_cpu(tmp_path, name):
    if name == "amx" or name not in cpp_library.supported_sets():
        pytest.skip("this CPU does not have it, or a process must ask for it")
    compile_and_run(tmp_path, cpp_library._compiler(), INSTRUCTION_SETS[name].flags)


@pytest.mark.parametrize("name", [*INSTRUCTION_SETS])
def test_the_library_of_each_instruction_set_of_this_cpu(name, tmp_path):
    if platform.machine() not in (*X86, *ARM) or name not in cpp_library.supported_sets():
        pytest.skip("this CPU does not have it")
    code = """
import sys
import torch
from torch import nn
from glassformer.kernels.kernel_registry import cpp_kernels
from glassformer.nn.quantized_linear import Int8Linear
assert cpp_kernels().instruction_set() == sys.argv[1]
linear, x = nn.Linear(300, 70), torch.randn(50, 300)
layer = Int8Linear(linear)
assert torch.equal(torch.cat([layer(row[None]) for row in x]), layer(x))
torch.testing.assert_close(layer(x), linear(x), rtol=0, atol=0.05)
"""
    environment = os.environ | {"GLASSFORMER_CPU_KERNELS": name, "GLASSFORMER_CACHE": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code, name], env=environment, check=True)
