"""Code that torch compiled for other vector instructions is never used again."""

import pytest
import torch

from glassformer.runtime.compile_cache import separate_compile_cache


@pytest.fixture(autouse=True)
def restored_tag():
    before = torch.compiler.config.cache_key_tag
    yield
    torch.compiler.config.cache_key_tag = before


@pytest.mark.parametrize("own_tag", ["", "my-tag"])
def test_each_kind_of_cpu_has_its_own_key_and_keeps_the_tag_of_the_user(monkeypatch, own_tag):
    tags = []
    for capability in ("AVX512", "AVX2", "DEFAULT"):
        torch.compiler.config.cache_key_tag = own_tag
        monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda capability=capability: capability)
        for _ in range(2):
            separate_compile_cache()
        tags.append(torch.compiler.config.cache_key_tag)
    assert tags == [f"{own_tag} {capability}".strip() for capability in ("AVX512", "AVX2", "DEFAULT")]


def test_the_tag_is_part_of_the_key_of_compiled_code():
    torch.compiler.config.cache_key_tag = ""
    separate_compile_cache()
    try:
        from torch._inductor.codecache import FxGraphHashDetails

        details = FxGraphHashDetails(None, [], {}, [])
    except UnicodeDecodeError:
        pytest.skip("torch 2.13 reads its own templates in the locale's encoding, and this one has ASCII alone")
    assert details.cache_key_tag == torch.backends.cpu.get_cpu_capability()
