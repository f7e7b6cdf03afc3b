"""Compile the C++ kernels of `cpp/` on first use, and load them: as torch operations, or for training as C functions.

`cpp/int8.h` has the int8 products, `cpp/step.h` attention of one step, `cpp/rows.h` norms, rotary positions and gates,
`cpp/choice.h` the choice of tokens, `cpp/sampling.h` sampling, `cpp/beams.h` the bookkeeping of beam search;
`cpp/library.cpp` makes torch operations of them. `cpp/training.cpp` has the kernels of training. Each of these files is
compiled for one of INSTRUCTION_SETS: the best one that the CPU has, or the one that the environment variable
GLASSFORMER_CPU_KERNELS names. The compiled libraries are kept in the cache folder (`build_cache.py`).
"""

import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassformer.cache_folder import cache_folder
from glassformer.kernels.build_cache import built_library, find_library

FOLDER = Path(__file__).with_name("cpp")
SOURCES = sorted([*FOLDER.glob("*.cpp"), *FOLDER.glob("*.h")])
FLAGS = ("-O3", "-std=c++20", "-shared", "-fPIC")
OPENMP_FLAGS = ("-fopenmp",)
MAX_SECONDS = 600
"""Limit of one compilation. It takes half a minute on a slow machine."""
X86 = ("x86_64", "AMD64")
ARM = ("aarch64", "arm64")
CHOICE_VARIABLE = "GLASSFORMER_CPU_KERNELS"
"""The environment variable that names an instruction set of INSTRUCTION_SETS, or `auto` or `none`."""
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class InstructionSet:
    """CPU instructions for which the kernels can be compiled.

    `probe` is a C++ function that uses one of them: a compiler that compiles it knows the instructions.
    """

    flags: tuple[str, ...]
    probe: str


_AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mfma", "-mf16c")
_VNNI = (*_AVX512, "-mavx512vnni")
INSTRUCTION_SETS = {
    "amx": InstructionSet(
        (*_VNNI, "-mavx512bf16", "-mamx-tile", "-mamx-int8", "-mamx-bf16"),
        "#include <immintrin.h>\nvoid probe() { _tile_release(); }",
    ),
    "vnni": InstructionSet(
        _VNNI, "#include <immintrin.h>\n__m512i probe(__m512i x) { return _mm512_dpbusd_epi32(x, x, x); }"
    ),
    "avx512": InstructionSet(
        _AVX512, "#include <immintrin.h>\n__m512i probe(__m512i x) { return _mm512_add_epi16(x, x); }"
    ),
    "avx2": InstructionSet(
        ("-mavx2", "-mfma", "-mf16c"),
        "#include <immintrin.h>\n__m256 probe(__m128i x) { return _mm256_cvtph_ps(x); }",
    ),
    "dotprod": InstructionSet(
        ("-march=armv8.2-a+dotprod",),
        "#include <arm_neon.h>\nint32x4_t probe(int32x4_t x, int8x16_t y) { return vdotq_s32(x, y, y); }",
    ),
    "neon": InstructionSet(
        ("-march=armv8-a",),
        "#include <arm_neon.h>\nint32x4_t probe(int32x4_t x) { return vpaddq_s32(x, x); }",
    ),
}
"""By name. For each kind of CPU the best ones come first: AMX, AVX-512 VNNI, AVX-512, AVX2; ARM dot products, NEON."""


@dataclass(frozen=True)
class CppSource:
    """A C++ file that is compiled to a library. Without torch's headers that takes seconds instead of a minute."""

    file: str
    prefix: str
    """The beginning of the library's name in the cache folder."""
    uses_torch: bool


DECODING = CppSource("library.cpp", "cpu", uses_torch=True)
TRAINING = CppSource("training.cpp", "training", uses_torch=False)


class KernelBuildError(RuntimeError):
    """The C++ kernels cannot be built or loaded on this machine."""


class CompilerRefusedError(KernelBuildError):
    """The compiler reports an error, such as a flag that it does not know."""


class UnsupportedCPUError(KernelBuildError):
    """There are no C++ kernels for this kind of CPU, or the user has turned them off."""


def load_cpp_library() -> Any:
    """Compile the C++ library if it is not in the cache folder, load it, and return `torch.ops.glassformer_cpu`.

    `cpp/library.cpp` lists the operations. Raises KernelBuildError if this machine cannot build or load the library.
    """
    _compile_and_load(DECODING, torch.ops.load_library)
    torch.library.register_fake("glassformer_cpu::linear", _fake_linear)
    torch.library.register_fake("glassformer_cpu::two_byte_linear", _fake_linear)
    torch.library.register_fake("glassformer_cpu::attend", _fake_attend)
    torch.library.register_fake("glassformer_cpu::move", lambda *_: None)
    return torch.ops.glassformer_cpu


def load_training_library() -> ctypes.CDLL:
    """Compile the kernels of training if they are not in the cache folder, load them, and return their C functions.

    `cpp/training.cpp` lists the functions. Raises KernelBuildError if this machine cannot build or load the library.
    """
    library: ctypes.CDLL = _compile_and_load(TRAINING, ctypes.CDLL)
    return library


def _compile_and_load(source: CppSource, load: Callable[[str], Any]) -> Any:
    """Compile a source if its library is not in the cache folder, and return load(path of the library)."""
    try:
        names, compiler = wanted_sets(), _compiler()
        slower: list[str] = []
        name = _library_name(names, compiler, source)
        with built_library(name, partial(_build, compiler, names, slower, source)) as library:
            loaded = load(str(library))
    except (OSError, ValueError) as error:  # no folder to build in, or a library that cannot be loaded
        raise KernelBuildError(f"the compiled kernels cannot be used: {error}") from error
    for reason in slower:
        _LOG.warning("the compiled kernels are slower than this CPU allows: %s", reason)
    return loaded


def wanted_sets() -> list[str]:
    """Return the names of the instruction sets to compile for, the best one first.

    The further ones are for compilers that do not know the first one. GLASSFORMER_CPU_KERNELS sets the first. Raises
    KernelBuildError if this CPU does not have it, and UnsupportedCPUError if it has none or the variable is `none`.
    """
    supported = supported_sets()
    asked = os.environ.get(CHOICE_VARIABLE) or "auto"
    if asked == "none":
        raise UnsupportedCPUError(f"{CHOICE_VARIABLE}=none turns the C++ kernels off")
    if not supported:
        raise UnsupportedCPUError(f"there are no C++ kernels for this CPU ({platform.machine()})")
    if asked == "auto":
        return supported
    if asked not in supported:
        raise KernelBuildError(
            f"{CHOICE_VARIABLE}={asked}: this CPU runs {', '.join(supported)}; expected one of them, auto or none"
        )
    return supported[supported.index(asked) :]


def supported_sets() -> list[str]:
    """Return the names of the instruction sets that this CPU has, the best one first."""
    if os.name != "posix":  # other systems have compilers with other flags
        return []
    if platform.machine() in ARM:
        return ["dotprod", "neon"] if _has_dot_products() else ["neon"]
    if platform.machine() not in X86:
        return []
    # torch reports the capability `DEFAULT` without AVX2 or without FMA, and `AVX512` only if there are BW and VL, too.
    # A CPU with AVX2 and FMA also has F16C; a CPU with VNNI also has AVX-512 BW and VL.
    capability = torch.backends.cpu.get_cpu_capability()
    has_avx2 = torch.cpu._is_avx2_supported() and capability != "DEFAULT"
    has_vnni = has_avx2 and torch.cpu._is_vnni_supported()
    has_amx = has_vnni and torch.cpu._is_amx_tile_supported() and torch.cpu._is_avx512_bf16_supported()
    has_avx512 = has_vnni or (has_avx2 and capability == "AVX512")
    has = {"amx": has_amx, "vnni": has_vnni, "avx512": has_avx512, "avx2": has_avx2}
    return [name for name in has if has[name]]


def _library_name(names: list[str], compiler: list[str], source: CppSource = DECODING) -> str:
    """Return a name that differs for each CPU, compiler, torch and source code.

    A new version of a compiler has another time of change: it may know instructions that the old one did not.
    """
    program = Path(compiler[0]).stat()
    identity = f"{torch.__version__} {compiler} {program.st_size} {program.st_mtime_ns} {_all_flags(names)}".encode()
    identity += b"".join(path.read_bytes() for path in SOURCES)
    return f"{source.prefix}-{names[0]}-{hashlib.sha256(identity).hexdigest()[:16]}"


def _all_flags(names: list[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Return instruction sets with the flags for them, in the order in which they are tried.

    macOS's compiler knows no OpenMP: the kernels then use one thread.
    """
    parallel = [()] if sys.platform == "darwin" else [OPENMP_FLAGS, ()]
    return [(name, (*FLAGS, *INSTRUCTION_SETS[name].flags, *more)) for name in names for more in parallel]


def is_library_built() -> bool:
    """Return whether the library of decoding is in the cache folder, so that it need not be compiled.

    Raises KernelBuildError if it cannot be compiled here: without a compiler, or on a CPU without kernels.
    """
    name = _library_name(wanted_sets(), _compiler())
    try:
        return find_library(cache_folder() / "kernels", name) is not None
    except OSError:
        return False


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


def _build(compiler: list[str], names: list[str], slower: list[str], source: CppSource, library: Path) -> None:
    """Compile a source for the first instruction set that the compiler knows, and write the library.

    If that is not the first of `names`, or if the compiler lacks OpenMP, the reason is appended to `slower`.
    """
    home = Path(torch.__file__).parent
    name, flags, refused = _known_flags(compiler, names, library.parent)
    arguments = [str(FOLDER / source.file)]
    if source.uses_torch:
        arguments = [f"-I{home / 'include'}", f"-I{home / 'include/torch/csrc/api/include'}", *arguments]
        arguments += [f"-L{home / 'lib'}", "-ltorch_cpu", "-lc10"]
        if sys.platform == "darwin":
            arguments.append(f"-Wl,-rpath,{home / 'lib'}")
    _run_compiler([*compiler, *flags, *arguments], library)
    if refused:
        threads = "" if OPENMP_FLAGS[0] in flags else ", for one thread"
        slower.append(f"they are compiled for {name}{threads} ({refused}); install a newer g++ or clang++, or set CXX")


def _known_flags(compiler: list[str], names: list[str], folder: Path) -> tuple[str, tuple[str, ...], str]:
    """Return an instruction set and its flags that the compiler knows, and why it refused the first ones, or "".

    Old compilers do not know the newest instructions, or their assembler does not; some come without OpenMP.
    """
    refused = ""
    for name, flags in _all_flags(names):
        needs_openmp = OPENMP_FLAGS[0] in flags
        openmp = "#include <omp.h>\nint threads() { return omp_get_max_threads(); }\n" if needs_openmp else ""
        with tempfile.TemporaryDirectory(prefix="probe-", dir=folder) as work:
            source = Path(work) / "probe.cpp"
            source.write_text(f"{openmp}{INSTRUCTION_SETS[name].probe}\n", encoding="utf-8")
            try:
                _run_compiler([*compiler, *flags, str(source)], Path(work) / "probe.so")
            except CompilerRefusedError as error:
                refused = refused or str(error)
                continue
        return name, flags, refused
    raise CompilerRefusedError(refused)


def _run_compiler(command: list[str], library: Path) -> None:
    """Run the compiler. Raises CompilerRefusedError if it writes no library, KernelBuildError if it does not run."""
    command = [*command, "-o", str(library)]
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
        raise CompilerRefusedError(f"the kernels could not be compiled: {reason}")
