"""Describe this installation and this machine: for `glassformer info` without a model, and for reports of errors."""

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import torch

from glassformer.base.version import __version__
from glassformer.cache_folder import cache_folder
from glassformer.kernels.build_cache import why_not_cached
from glassformer.kernels.cpp_library import KernelBuildError, is_library_built, wanted_sets
from glassformer.kernels.triton_kernels import has_triton_kernels
from glassformer.runtime.expected_speed import measure_rates

CORE_PACKAGES = ("numpy", "safetensors", "tokenizers")


def report_machine(*, measure: bool = False) -> dict[str, str]:
    """Return the versions, processors, kernels and folders that Glassformer uses here, by name.

    With `measure` also the speed of the processors: of matrix products and of memory.
    """
    found = {
        "glassformer": __version__,
        "python": f"{platform.python_version()} on {platform.system()} {platform.release()}, {platform.machine()}",
        "torch": torch.__version__,
        "packages": ", ".join(f"{name} {_version_of(name) or 'missing'}" for name in CORE_PACKAGES),
        "extras": _extras(),
        "cpu": f"{_cpu_name()}, {_n_cores()} cores, {torch.get_num_threads()} threads",
        "cpu kernels": _cpp_kernels(),
    }
    devices = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    for device in devices:
        found[f"gpu {device.index}"] = _describe_gpu(device)
    if not devices:
        found["gpu"] = "none that torch can use"
    found["cache"] = _cache()
    for device in [torch.device("cpu"), *devices] if measure else ():
        name = f"gpu {device.index}" if device.type == "cuda" else "cpu"
        found[f"speed, {name}"] = _describe_speed(device)
    return found


def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _extras() -> str:
    """Return the extras of the package, each with the packages that it lacks here."""
    needed: dict[str, list[str]] = {}
    try:
        lines = requires("glassformer") or []
    except PackageNotFoundError:
        return "unknown, because the package glassformer is not installed"
    for line in lines:
        extra, name = re.search(r"""extra == ['"]([\w-]+)['"]""", line), re.match(r"[\w.-]+", line)
        if extra is not None and name is not None and extra[1] != "all":
            needed.setdefault(extra[1], []).append(name[0])
    found = []
    for extra_name, packages in needed.items():
        missing = [package for package in packages if _version_of(package) is None]
        found.append(f"{extra_name} (without {' '.join(missing)})" if missing else extra_name)
    return ", ".join(found)


def _cpu_name() -> str:
    """Return the name of the processor, as Linux reports it, or else Python."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    named = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return named[1] if named else platform.processor() or platform.machine()


def _n_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpp_kernels() -> str:
    """Return the instruction set of the C++ kernels, and whether they are built."""
    try:
        best = wanted_sets()[0]
        is_built = is_library_built()
    except KernelBuildError as error:
        return f"none, torch's own are used: {error}"
    if is_built:
        return f"{best}, built"
    reason = why_not_cached()
    when = "the first use takes half a minute" if reason is None else f"every process builds them: {reason}"
    return f"{best}, not built yet: {when}"


def _describe_gpu(device: torch.device) -> str:
    try:
        about = torch.cuda.get_device_properties(device)
    except (RuntimeError, AssertionError) as error:  # such as a driver that is too old for this torch
        return f"cannot be used: {_first_line(error)}"
    major, minor = about.major, about.minor
    kernels = "Triton kernels" if has_triton_kernels(device) else "no Triton kernels, torch's own are used"
    return f"{about.name}, {about.total_memory / 2**30:.0f} GiB, compute capability {major}.{minor}, {kernels}"


def _cache() -> str:
    try:
        return str(cache_folder())
    except OSError as error:
        return f"none: {error}"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _describe_speed(device: torch.device) -> str:
    names = {torch.float32: "float32"} | ({torch.bfloat16: "bfloat16"} if device.type == "cuda" else {})
    try:
        rates = {name: measure_rates(device, dtype) for dtype, name in names.items()}
    except (RuntimeError, AssertionError) as error:  # such as too little free memory
        return f"not measured: {_first_line(error)}"
    products = ", ".join(f"{rate.flops / 1e9:,.0f} GFLOP/s in {name}" for name, rate in rates.items())
    return f"{products}; memory {max(rate.bytes_read for rate in rates.values()) / 1e9:,.0f} GB/s"
