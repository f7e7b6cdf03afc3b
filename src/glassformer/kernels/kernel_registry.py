"""Choose the implementation of the kernels, by device and CPU features.

There is no setting for the whole process. The runtime of a model asks for a set of kernels and passes it along with the
key-value cache, so that preparing one model never changes how another one computes.
"""

import logging
from functools import cache

import torch

from glassformer.kernels.cpp_kernels import CppKernels
from glassformer.kernels.cpp_library import (
    KernelBuildError,
    UnsupportedCPUError,
    is_library_built,
    load_cpp_library,
)
from glassformer.kernels.kernel_set import KernelSet
from glassformer.kernels.triton_kernels import TritonKernels, has_triton_kernels

_LOG = logging.getLogger(__name__)
PLAIN = KernelSet()
_TRITON = TritonKernels()


def kernels_for(device: torch.device, *, compiled: bool = False) -> KernelSet:
    """Return the kernels for tensors on `device`.

    A GPU gets the Triton kernels where they run. A CPU gets plain torch, or with `compiled` the C++ kernels, which are
    built on first use (about half a minute). If the build fails, one warning is logged and plain torch is used; the
    process does not try again.
    """
    if device.type == "cuda" and has_triton_kernels(device):
        return _TRITON
    if device.type != "cpu" or not compiled:
        return PLAIN
    try:
        return cpp_kernels()
    except KernelBuildError as error:
        warn_of_fallback(error)
        return PLAIN


@cache
def was_library_built() -> bool:
    """Return whether the C++ library was in the cache folder when this process first needed to know.

    The answer stays the same when this process builds the library. Otherwise quantizing one model, which builds it,
    would change the kernels of another model in the middle of its work.
    """
    try:
        return is_library_built()
    except KernelBuildError:
        return False


@cache
def _load_once() -> CppKernels | KernelBuildError:
    """Return the C++ kernels, or the cached build error, so that a failed build is not retried."""
    was_library_built()  # before it is built
    try:
        return CppKernels(load_cpp_library())
    except KernelBuildError as error:
        return error


def cpp_kernels() -> CppKernels:
    """Return the C++ kernels. Raises KernelBuildError if this machine cannot build or run them."""
    found = _load_once()
    if isinstance(found, KernelBuildError):
        raise found
    return found


def warn_of_fallback(error: KernelBuildError) -> None:
    """Log once why plain torch is used. A CPU for which there are no kernels gets no warning: nothing is broken."""
    if not isinstance(error, UnsupportedCPUError):
        _warn_once(str(error))


@cache
def _warn_once(reason: str) -> None:
    _LOG.warning("torch's own kernels are used, which are slower: %s", reason)
