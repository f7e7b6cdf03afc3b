"""Benchmark workloads."""

import sys
from dataclasses import replace

import pytest
import torch

from glassformer import cli
from glassformer.bench.workloads import Workload, tokens_of, workloads
from glassformer.decoding import generate
from glassformer.models import preset
from glassformer.pipelines.load import load


def test_workloads_have_the_named_sizes():
    assert {work.config.kind for work in workloads().values()} == {"encoder_decoder", "decoder"}
    assert workloads()["gpt2"].flops(1, 1) > 2 * 85e6 * 256  # at least two FLOPs per layer weight and token
    assert workloads()["translation"].flops(2, 1) == 2 * workloads()["translation"].flops(1, 1)


@pytest.mark.parametrize("beam", [1, 2])
def test_our_run_gives_texts_of_exactly_the_workloads_length(beam, tmp_path):
    work = Workload("gpt2", preset("tiny-gpt2"), "gpt2", 3, 5)
    inputs = work.inputs(2)
    assert [len(tokens) for tokens in inputs] == [3, 3]
    work.save(tmp_path / "model", work.model())
    texts = tokens_of(work.ours(load(tmp_path / "model"), inputs, beam)())
    assert [len(text) for text in texts] == [5, 5]
    search = work.search(beam)
    assert search.min_new_tokens == search.max_new_tokens == 5
    assert search.suppress_tokens == (work.padding,)


def test_the_command_gives_the_texts_of_the_loaded_model(tmp_path, monkeypatch):
    work = Workload("translation", preset("tiny-marian"), "marian", 4, 5)
    work.save(tmp_path / "model", work.model())
    commands = []

    def run(command, *, check):
        commands.append(command)
        monkeypatch.setattr(sys, "argv", ["glassformer", *command[3:]])
        cli.main()

    monkeypatch.setattr("glassformer.bench.workloads.subprocess.run", run)  # in this process: torch is imported already
    inputs = work.inputs(3)
    write = work.as_command(tmp_path / "model", inputs, 1, ["--device", "cpu"])
    config = work.search(1)
    plain = generate(work.model(), inputs, replace(config, min_new_tokens=0), begin=work.begin, end=work.end)
    assert tokens_of(write()) == tokens_of(write()) == [texts[0].tokens for texts in plain]
    assert commands[0][:4] == [sys.executable, "-m", "glassformer", "run"]


def test_models_and_inputs_are_the_same_in_every_run():
    work = Workload("llama", preset("tiny-llama"), "llama", 3, 5)
    assert work.inputs(4) == work.inputs(4)
    for one, two in zip(work.model().parameters(), work.model().parameters(), strict=True):
        assert torch.equal(one, two)


def test_bytes_grow_with_the_number_format_and_with_the_cache_of_each_beam():
    work = workloads()["gpt2"]
    assert work.bytes_moved(1, 1, 4) == 2 * work.bytes_moved(1, 1, 2)
    more = work.bytes_moved(1, 2, 4) - work.bytes_moved(1, 1, 4)
    assert more == work.bytes_moved(2, 1, 4) - work.bytes_moved(1, 1, 4) > 0


def test_a_ragged_workload_has_inputs_of_mixed_lengths(tmp_path):
    work = Workload("requests", preset("tiny-gpt2"), "gpt2", 9, 5, 2)
    lengths = [len(tokens) for tokens in work.inputs(40)]
    assert (min(lengths), max(lengths)) == (2, 9)
    assert work.mean_read == 5
    work.save(tmp_path / "model", work.model())
    pipeline = load(tmp_path / "model")
    written = work.by_engine(pipeline.model, work.inputs(4))()
    assert written == tokens_of(work.ours(pipeline, work.inputs(4), 1)())
