"""Separate torch's cache of compiled code by the vector instructions of the CPU."""

import torch


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
