"""Keep torch's cache of compiled code apart for CPUs with different vector instructions."""

import torch


def separate_compile_cache() -> None:
    """Make the CPU's vector instructions part of the key of torch's cache of compiled code.

    Torch generates C++ for a vector width, and its key leaves that width out. Code that was generated for AVX-512 is
    then compiled for AVX2 and gives wrong numbers or crashes: on a machine where `ATEN_CPU_CAPABILITY` was changed, or
    where two machines share a cache folder. A tag that the user has set is kept.
    """
    config = torch.compiler.config
    capability = torch.backends.cpu.get_cpu_capability()
    if capability not in config.cache_key_tag.split():
        config.cache_key_tag = f"{config.cache_key_tag} {capability}".strip()
