"""Result files hold what the results page needs, and never replace a file."""

import json
import sys

import pytest
import torch

from glassformer.bench.result_file import write_result
from glassformer.cli import bench as command
from test_results_page import results_page


def test_the_results_page_can_show_a_result_file(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/usr/bin/glassformer", "bench", "decode", "--only", "HF, float32"])
    path = tmp_path / "new" / "speed.json"
    write_result(path, title="Speed", columns=["engine", "seconds"], rows=[["ours", 1.5]], notes=["Two texts."])
    result = results_page.read_results(path.parent)["speed"]
    assert result["command"] == ["glassformer bench decode --only 'HF, float32'"]
    assert torch.__version__ in result["machine"]
    assert "| ours | 1.5 |" in results_page.section(result)


def test_an_existing_file_is_not_replaced(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text("mine", encoding="utf-8")
    with pytest.raises(FileExistsError, match=r"mine\.json exists already: expected a new name"):
        command.bench(out=path)
    assert path.read_text(encoding="utf-8") == "mine"


def test_bench_writes_every_round(tmp_path, monkeypatch, capsys):
    from glassformer.bench import decode

    one = decode.Contender("glassformer", "float32", list, 0, texts=[[1]], seconds=[0.5, 0.25])
    monkeypatch.setattr(decode, "measure", lambda *args, **kwargs: [one])
    monkeypatch.setattr(decode, "limits", lambda device: decode.MachineLimits({"float32": 1.0}, 1.0))
    command.bench(batch=(8,), beam=(1, 4), rounds=2, device="cpu", out=tmp_path / "speed.json")
    result = json.loads((tmp_path / "speed.json").read_text(encoding="utf-8"))
    assert result["columns"][-2:] == ["round 1: seconds", "round 2: seconds"]
    assert result["rows"] == [[8, 1, "glassformer", "float32", 0.5, 0.25], [8, 4, "glassformer", "float32", 0.5, 0.25]]
