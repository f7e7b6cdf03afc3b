"""The benchmark runs every installed engine with the same weights, and all give the same tokens."""

import importlib.util
from dataclasses import replace

import pytest
import torch

from glassformer.bench.decode import LoadOptions, MachineLimits, measure, table
from glassformer.bench.workloads import Workload
from glassformer.cli.bench import bench
from glassformer.cli.flag_parser import UsageError
from glassformer.models import preset
from glassformer.pipelines.load import load

TINY = {
    "gpt2": Workload("gpt2", preset("tiny-gpt2"), "gpt2", 3, 5),
    "llama": Workload("llama", preset("tiny-llama"), "llama", 3, 5),
    "translation": Workload("translation", preset("tiny-marian"), "marian", 4, 5),
}


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch):
    """Answer as the command would, without a new process, which takes seconds to import torch."""
    monkeypatch.setattr(
        Workload, "as_command", lambda work, folder, inputs, beam, options: work.ours(load(folder), inputs, beam)
    )


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("name", TINY)
def test_all_engines_generate_the_same_tokens(name, beam):
    contenders = measure(TINY[name], batch=2, beam=beam, rounds=1, device="cpu", compiled=False)
    exact = [contender for contender in contenders if contender.numbers == "float32"]
    assert {contender.name for contender in exact} >= {"glassformer", "HF"}
    has_peer = importlib.util.find_spec("ctranslate2") is not None  # not every platform has it
    assert ("CTranslate2" in {contender.name for contender in exact}) == (name == "translation" and has_peer)
    for contender in exact:
        assert contender.texts == exact[0].texts, contender.name
        assert all(len(text) == 5 for text in contender.texts)
    limits = MachineLimits({"float32": 1e9}, 1e9)
    printed = table(TINY[name], contenders, limits, batch=2, beam=beam)
    assert "times as fast" in printed
    assert printed.count("\n| ") == len(contenders) + 1


@pytest.mark.skipif(importlib.util.find_spec("ctranslate2") is None, reason="ctranslate2 is not installed")
def test_ctranslate2_also_computes_a_batch_per_thread():
    usual, only = torch.get_num_threads(), ["CTranslate2"]
    try:
        torch.set_num_threads(2)
        one, two = (
            measure(TINY["translation"], batch=n, beam=1, rounds=1, device="cpu", compiled=False, only=only)
            for n in (1, 3)
        )
    finally:
        torch.set_num_threads(usual)
    assert {contender.name for contender in one} == {"CTranslate2"}
    assert {contender.name for contender in two} == {"CTranslate2", "CTranslate2, a batch per thread"}
    exact = [contender.texts for contender in two if contender.numbers == "float32"]
    assert exact[0] == exact[1]


def test_only_selects_engines():
    chosen = measure(TINY["gpt2"], batch=1, beam=1, rounds=1, device="cpu", compiled=False, only=["HF, float32"])
    assert [contender.title for contender in chosen] == ["HF, float32"]
    assert "times as fast" not in table(TINY["gpt2"], chosen, MachineLimits({"float32": 1e9}, 1e9), batch=1, beam=1)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (LoadOptions(quantize="int4"), "glassformer, int4"),
        (LoadOptions(quantize="none"), "glassformer, float32"),
        (LoadOptions(dtype="bfloat16"), "glassformer, bfloat16"),
    ],
)
def test_a_chosen_number_format_is_the_only_one_of_glassformer(options, expected, monkeypatch):
    flags, loaded = [], []
    monkeypatch.setattr(
        "glassformer.bench.decode.load", lambda path, **given: loaded.append(given) or load(path, **given)
    )
    monkeypatch.setattr(
        Workload,
        "as_command",
        lambda work, folder, inputs, beam, given: flags.append(given) or work.ours(load(folder), inputs, beam),
    )
    found = measure(
        TINY["gpt2"],
        batch=2,
        beam=1,
        rounds=1,
        device="cpu",
        compiled=False,
        only=["glassformer"],
        options=replace(options, batch_tokens=3),
    )
    assert [one.title for one in found] == [expected, expected.replace(", ", " run, process start included, ")]
    assert all(len(text) == 5 for one in found for text in one.texts)
    assert flags[0][4:6] == ["--batch-tokens", "3"]
    assert [given["batch_tokens"] for given in loaded] == [3]
    printed = table(TINY["gpt2"], found, MachineLimits({"float32": 1e9}, 1e9), batch=2, beam=1)
    assert printed.count(f"| {expected.split(', ')[1]} |") == 2


def test_the_number_formats_that_are_measured_by_default():
    assert [*LoadOptions().formats("cuda")] == ["bfloat16"]
    assert [*LoadOptions().formats("cpu")][:2] == ["float32", "int8"]
    assert LoadOptions(dtype="float16").formats("cuda") == {"float16": {"dtype": "float16"}}
    assert LoadOptions(quantize="none").formats("cpu") == {"float32": {}}


@pytest.mark.parametrize("only", [["hf"], ["HF", "glasformer"]])
def test_an_unknown_engine_is_refused_with_the_known_names(only):
    with pytest.raises(ValueError, match=f"--only '{only[-1]}' matches no engine: .* HF, float32"):
        measure(TINY["gpt2"], batch=1, beam=1, rounds=1, device="cpu", compiled=False, only=only)


@pytest.mark.parametrize("only", ["glassformer, float32", "HF, float32"])
def test_a_table_without_a_comparison_ends_with_its_last_row(only):
    found = measure(TINY["gpt2"], batch=1, beam=1, rounds=1, device="cpu", compiled=False, only=[only])
    printed = table(TINY["gpt2"], found, MachineLimits({"float32": 1e9}, 1e9), batch=1, beam=1)
    assert printed.splitlines()[-1].startswith(f"| {only.split(',')[0]} | float32 | ")


@pytest.mark.parametrize("wrong", [{"batch": (0,)}, {"beam": (4, -1)}, {"rounds": 0}, {"threads": -2}])
def test_invalid_bench_options_are_refused(wrong):
    (name,) = wrong
    with pytest.raises(UsageError, match=f"--{name} (0|-1|-2): expected (at least 1|0 to 1,024)"):
        bench(**wrong)


def test_the_batching_engine_generates_the_tokens_of_one_batch():
    work = Workload("requests", preset("tiny-gpt2"), "gpt2", 9, 5, 2)
    contenders = measure(work, batch=5, beam=1, rounds=1, device="cpu", compiled=False, only=["float32"])
    assert [contender.name for contender in contenders] == ["glassformer", "glassformer, batching engine"]
    assert contenders[0].texts == contenders[1].texts
    assert contenders[1].write() == contenders[1].texts
    printed = table(work, contenders, MachineLimits({"float32": 1e12}, 1e11), batch=5, beam=1)
    assert "2 to 9 tokens read, 5 written" in printed
    (alone,) = measure(work, batch=2, beam=2, rounds=1, device="cpu", compiled=False, only=["float32"])
    assert alone.name == "glassformer"
