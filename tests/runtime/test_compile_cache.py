"""Code that torch compiled for other vector instructions is not reused, and a missing compiler is named."""

import pytest
import torch
from torch._inductor.exc import InvalidCxxCompiler

from glassformer.runtime.compile_cache import check_cpp_compiler, separate_compile_cache


@pytest.fixture(autouse=True)
def restored_tag():
    before = torch.compiler.config.cache_key_tag
    yield
    torch.compiler.config.cache_key_tag = before


@pytest.mark.parametrize("own_tag", ["", "my-tag"])
def test_each_cpu_capability_has_a_cache_key_and_the_users_tag_is_kept(monkeypatch, own_tag):
    tags = []
    for capability in ("AVX512", "AVX2", "DEFAULT"):
        torch.compiler.config.cache_key_tag = own_tag
        monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda capability=capability: capability)
        for _ in range(2):
            separate_compile_cache()
        tags.append(torch.compiler.config.cache_key_tag)
    assert tags == [f"{own_tag} {capability}".strip() for capability in ("AVX512", "AVX2", "DEFAULT")]


def test_the_tag_is_part_of_torchs_cache_key():
    torch.compiler.config.cache_key_tag = ""
    separate_compile_cache()
    try:
        from torch._inductor.codecache import FxGraphHashDetails

        details = FxGraphHashDetails(None, [], {}, [])
    except UnicodeDecodeError:
        pytest.skip("torch 2.13 reads its templates in the locale's encoding, and this locale is ASCII")
    assert details.cache_key_tag == torch.backends.cpu.get_cpu_capability()


def test_a_missing_compiler_is_named(monkeypatch):
    def fail():
        raise InvalidCxxCompiler

    monkeypatch.setattr("torch._inductor.cpp_builder.get_cpp_compiler", fail)
    with pytest.raises(ValueError, match=r"compile='on': torch finds no C\+\+ compiler: install g"):
        check_cpp_compiler()
    monkeypatch.setattr("torch._inductor.cpp_builder.get_cpp_compiler", lambda: "g++")
    check_cpp_compiler()
