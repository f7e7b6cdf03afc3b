"""Our kernels for CPUs, in C++: compiled when they are first asked for, and kept for the next time.

They are int8 products (`cpp/int8.h`), and what a step of writing needs beside products (`cpp/step.h`, `cpp/choice.h`),
which from then on is used wherever it fits (`kernels/step_kernels.py`, `kernels/choice_kernels.py`).
"""

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassformer.kernels import step_kernels
from glassformer.kernels.build_cache import built_library

FOLDER = Path(__file__).with_name("cpp")
SOURCES = sorted([*FOLDER.glob("*.cpp"), *FOLDER.glob("*.h")])
FLAGS = ("-O3", "-std=c++20", "-shared", "-fPIC", "-fopenmp")
MAX_SECONDS = 600
"""What a compiler may take; it takes half a minute on a slow machine."""
X86 = ("x86_64", "AMD64")
ARM_FLAGS = ("-march=armv8.2-a+dotprod",)
X86_FLAGS = ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512vnni", "-mamx-tile", "-mamx-int8")


class NoKernelsError(RuntimeError):
    """This machine cannot have them."""


class UnsupportedCPUError(NoKernelsError):
    """There are none for this kind of CPU."""


def cpu_kernels() -> Any:
    """The operations by their names; `cpp/library.cpp` lists them."""
    found = _load()
    if isinstance(found, NoKernelsError):
        raise found
    return found


@cache
def _load() -> Any:
    """The compiled kernels, or the error that tells why there are none: a build that failed is not tried again."""
    try:
        return _compile_and_load()
    except NoKernelsError as error:
        return error
    except (OSError, ValueError) as error:  # no folder to build in, or a library that cannot be loaded
        return NoKernelsError(f"the compiled kernels cannot be used: {error}")


def _compile_and_load() -> Any:
    flags = FLAGS + _flags_of_this_cpu()
    compiler = _compiler()
    identity = f"{torch.__version__} {compiler} {flags}".encode() + b"".join(path.read_bytes() for path in SOURCES)
    name = f"cpu-{hashlib.sha256(identity).hexdigest()[:16]}"
    with built_library(name, partial(_compile, [*compiler, *flags])) as library:
        torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
    torch.library.register_fake("glassformer_cpu::linear", _shape_of_linear)
    torch.library.register_fake("glassformer_cpu::attend", _shape_of_attended)
    torch.library.register_fake("glassformer_cpu::move", lambda *_: None)
    step_kernels.on_cpu = torch.ops.glassformer_cpu
    return torch.ops.glassformer_cpu


def _flags_of_this_cpu() -> tuple[str, ...]:
    is_unix = os.name == "posix"  # the others take other flags
    if is_unix and platform.machine() in ("aarch64", "arm64") and _has_dot_products():
        return ARM_FLAGS
    if is_unix and platform.machine() in X86 and torch.cpu._is_vnni_supported():
        return X86_FLAGS
    raise UnsupportedCPUError(f"no int8 kernels for this {platform.machine()}: the float model runs everywhere")


def _has_dot_products() -> bool:
    """Whether an ARM CPU has the dot-product instruction. All of Apple's do; Linux reports it for the others."""
    if sys.platform == "darwin":
        return True
    try:
        capabilities = ctypes.CDLL(None).getauxval
    except (AttributeError, OSError, TypeError):
        return False
    capabilities.restype = ctypes.c_ulong
    return bool(capabilities(16) & 1 << 20)  # AT_HWCAP and HWCAP_ASIMDDP


def _shape_of_linear(
    x: Tensor, packed: Tensor, scales: Tensor, bias: Tensor | None, n_in: int, n: int, relu: bool
) -> Tensor:
    """What torch.compile must know of the kernel."""
    return x.new_empty(*x.shape[:-1], n)


def _shape_of_attended(q: Tensor, k: Tensor, v: Tensor, added: Tensor, reach: Tensor, scale: float) -> Tensor:
    return torch.empty_like(q.transpose(1, 2), memory_format=torch.contiguous_format).transpose(1, 2)


def _compiler() -> list[str]:
    """The command of a C++ compiler: `$CXX`, which may hold arguments too, or else g++ or clang++."""
    asked = shlex.split(os.environ.get("CXX", ""))
    for command in (asked, ["g++"], ["clang++"]):
        if command and (found := shutil.which(command[0])) is not None:
            return [found, *command[1:]]
    raise NoKernelsError("int8 compiles its kernels once and found no compiler: expected g++ or clang++, or CXX")


def _compile(command: list[str], library: Path) -> None:
    home = Path(torch.__file__).parent
    source = next(path for path in SOURCES if path.suffix == ".cpp")
    command = [*command, f"-I{home / 'include'}", f"-I{home / 'include/torch/csrc/api/include'}"]
    command += [str(source), "-o", str(library), f"-L{home / 'lib'}", "-ltorch_cpu", "-lc10"]
    # The compiler's temporary files go where they are removed with the folder, also after a kill.
    environment = os.environ | {"TMPDIR": str(library.parent)}
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, env=environment, timeout=MAX_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoKernelsError(f"the kernels could not be compiled: {error}") from error
    if result.returncode or not library.is_file():
        lines = result.stderr.strip().splitlines() or [f"{command[0]} gave no reason"]
        reason = next((line for line in lines if "error" in line), lines[0])
        raise NoKernelsError(f"the kernels could not be compiled: {reason}")
