"""What `torch.compile` needs on a CPU: a C++ compiler, and a cache for each kind of vector instructions."""

import torch


def check_cpp_compiler() -> None:
    """Raise ValueError if torch finds no C++ compiler, without which it compiles nothing for a CPU."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        raise ValueError(
            "compile='on': torch finds no C++ compiler: install g++, name a compiler in the variable CXX, or use 'auto'"
        ) from None


def separate_compile_cache() -> None:
    """Make the CPU's vector instructions part of the key of torch's cache of compiled code.

    Torch generates C++ for a vector width, but its cache key leaves that width out. Code that was generated for AVX-512
    can then be compiled for AVX2, which gives wrong numbers or crashes: after a change of `ATEN_CPU_CAPABILITY`, or if
    two machines share a cache folder. A `cache_key_tag` that the user has set is kept.
    """
    config = torch.compiler.config
    capability = torch.backends.cpu.get_cpu_capability()
    if capability not in config.cache_key_tag.split():
        config.cache_key_tag = f"{config.cache_key_tag} {capability}".strip()
