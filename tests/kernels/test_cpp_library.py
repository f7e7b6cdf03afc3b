"""Compiling and loading the C++ kernels, and what happens where that is impossible."""

from pathlib import Path

import pytest
import torch
from torch import nn

from glassformer.kernels import cpp_library, kernel_registry
from glassformer.kernels.cpp_library import KernelBuildError
from glassformer.nn import quantized_linear
from glassformer.runtime import quantized_model


def test_a_cpu_without_the_needed_instructions_is_refused_by_name(monkeypatch):
    for machine in ("aarch64", "x86_64", "riscv64"):
        monkeypatch.setattr(cpp_library.platform, "machine", lambda machine=machine: machine)
        monkeypatch.setattr(cpp_library, "_has_dot_products", lambda: False)
        monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
        with pytest.raises(KernelBuildError, match=f"no int8 kernels for this {machine}"):
            cpp_library._cpu_flags()


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


@pytest.mark.parametrize(("machine", "flags"), [("x86_64", cpp_library.X86_FLAGS), ("aarch64", cpp_library.ARM_FLAGS)])
def test_the_compiler_flags_follow_the_cpu(machine, flags, monkeypatch):
    monkeypatch.setattr(cpp_library.os, "name", "posix")
    monkeypatch.setattr(cpp_library.platform, "machine", lambda: machine)
    monkeypatch.setattr(cpp_library, "_has_dot_products", lambda: True)
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: True)
    assert cpp_library._cpu_flags() == flags
