"""Compile the C++ kernels of `cpp/` on first use, and load them as torch operations.

`cpp/int8.h` has the int8 products, `cpp/step.h` attention of one step and beam reordering, `cpp/choice.h` the choice
of tokens. The compiled library is kept in the cache folder (`build_cache.py`).
"""

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassformer.cache_folder import cache_folder
from glassformer.kernels.build_cache import built_library, find_library

FOLDER = Path(__file__).with_name("cpp")
SOURCES = sorted([*FOLDER.glob("*.cpp"), *FOLDER.glob("*.h")])
FLAGS = ("-O3", "-std=c++20", "-shared", "-fPIC", "-fopenmp")
MAX_SECONDS = 600
"""Limit of one compilation. It takes half a minute on a slow machine."""
X86 = ("x86_64", "AMD64")
ARM_FLAGS = ("-march=armv8.2-a+dotprod",)
X86_FLAGS = ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512vnni", "-mamx-tile", "-mamx-int8")


class KernelBuildError(RuntimeError):
    """The C++ kernels cannot be built or loaded on this machine."""


class UnsupportedCPUError(KernelBuildError):
    """There are no C++ kernels for this kind of CPU."""


def load_cpp_library() -> Any:
    """Compile the C++ library if it is not in the cache folder, load it, and return `torch.ops.glassformer_cpu`.

    `cpp/library.cpp` lists the operations. Raises KernelBuildError if this machine cannot build or load the library.
    """
    try:
        return _compile_and_load()
    except (OSError, ValueError) as error:  # no folder to build in, or a library that cannot be loaded
        raise KernelBuildError(f"the compiled kernels cannot be used: {error}") from error


def _compile_and_load() -> Any:
    flags = FLAGS + _cpu_flags()
    compiler = _compiler()
    with built_library(_library_name(flags, compiler), partial(_compile, [*compiler, *flags])) as library:
        torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
    torch.library.register_fake("glassformer_cpu::linear", _fake_linear)
    torch.library.register_fake("glassformer_cpu::attend", _fake_attend)
    torch.library.register_fake("glassformer_cpu::move", lambda *_: None)
    return torch.ops.glassformer_cpu


def is_library_built() -> bool:
    """Return whether the library is in the cache folder, so that it need not be compiled.

    Raises KernelBuildError if it cannot be compiled here: without a compiler, or on a CPU without kernels.
    """
    name = _library_name(FLAGS + _cpu_flags(), _compiler())
    try:
        return find_library(cache_folder() / "kernels", name) is not None
    except OSError:
        return False


def _library_name(flags: tuple[str, ...], compiler: list[str]) -> str:
    identity = f"{torch.__version__} {compiler} {flags}".encode() + b"".join(path.read_bytes() for path in SOURCES)
    return f"cpu-{hashlib.sha256(identity).hexdigest()[:16]}"


def _cpu_flags() -> tuple[str, ...]:
    is_unix = os.name == "posix"  # other systems have compilers with other flags
    if is_unix and platform.machine() in ("aarch64", "arm64") and _has_dot_products():
        return ARM_FLAGS
    if is_unix and platform.machine() in X86 and torch.cpu._is_vnni_supported():
        return X86_FLAGS
    raise UnsupportedCPUError(f"no int8 kernels for this {platform.machine()}: use the float model")


def _has_dot_products() -> bool:
    """Whether an ARM CPU has the dot-product instruction. Every Apple CPU has it; Linux reports it for others."""
    if sys.platform == "darwin":
        return True
    try:
        capabilities = ctypes.CDLL(None).getauxval
    except (AttributeError, OSError, TypeError):
        return False
    capabilities.restype = ctypes.c_ulong
    return bool(capabilities(16) & 1 << 20)  # AT_HWCAP and HWCAP_ASIMDDP


def _fake_linear(
    x: Tensor, packed: Tensor, scales: Tensor, bias: Tensor | None, n_in: int, n: int, relu: bool
) -> Tensor:
    """Return an empty tensor of the shape of an int8 product, which `torch.compile` traces instead of the kernel."""
    return x.new_empty(*x.shape[:-1], n)


def _fake_attend(q: Tensor, k: Tensor, v: Tensor, added: Tensor, key_end: Tensor, scale: float) -> Tensor:
    return torch.empty_like(q.transpose(1, 2), memory_format=torch.contiguous_format).transpose(1, 2)


def _compiler() -> list[str]:
    """Return the command of a C++ compiler: `$CXX` with its arguments, else g++ or clang++."""
    asked = shlex.split(os.environ.get("CXX", ""))
    for command in (asked, ["g++"], ["clang++"]):
        if command and (found := shutil.which(command[0])) is not None:
            return [found, *command[1:]]
    raise KernelBuildError("no C++ compiler was found to compile the kernels: install g++ or clang++, or set CXX")


def _compile(command: list[str], library: Path) -> None:
    home = Path(torch.__file__).parent
    source = next(path for path in SOURCES if path.suffix == ".cpp")
    command = [*command, f"-I{home / 'include'}", f"-I{home / 'include/torch/csrc/api/include'}"]
    command += [str(source), "-o", str(library), f"-L{home / 'lib'}", "-ltorch_cpu", "-lc10"]
    # Temporary files of a killed compiler are then removed together with the build folder.
    environment = os.environ | {"TMPDIR": str(library.parent)}
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, env=environment, timeout=MAX_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KernelBuildError(f"the kernels could not be compiled: {error}") from error
    if result.returncode or not library.is_file():
        lines = result.stderr.strip().splitlines() or [f"{command[0]} gave no reason"]
        reason = next((line for line in lines if "error" in line), lines[0])
        raise KernelBuildError(f"the kernels could not be compiled: {reason}")
