"""`glassformer explain` writes the page and the numbers, checks a model, and refuses what has no effect."""

import json
from urllib.parse import parse_qsl

import pytest
import torch

from glassformer.inspect.page_file import embedded_explanation
from glassformer.pipelines.classifier import Classifier
from glassformer.pipelines.load import load
from pipelines.tiny_pipelines import make


@pytest.fixture
def folder(tmp_path):
    make(Classifier).save(tmp_path / "model", "A tiny random model.")
    return tmp_path / "model"


def test_page_and_numbers_are_written(call, folder, tmp_path):
    page, numbers = tmp_path / "page.html", tmp_path / "numbers.json"
    code, out, _ = call("explain", folder, "--text", "the old cat", "--out", page, "--json", numbers, "--device", "cpu")
    assert code == 0
    assert str(page) in out
    found = json.loads(numbers.read_text(encoding="utf-8"))
    assert found["output"]["text"] == load(folder).run("the old cat")
    assert found["model"]["name"] == "model"
    assert found["health"]
    assert embedded_explanation(page.read_text(encoding="utf-8")) == found


@pytest.mark.parametrize("flag", ["--out", "--json"])
def test_other_files_are_not_overwritten(call, folder, tmp_path, flag):
    arguments = ("explain", folder, "--text", "the old cat", "--device", "cpu", "--quiet", flag)
    data = tmp_path / "reviews.tsv"
    data.write_text("it is good\tpositive\n", encoding="utf-8")
    before = (folder / "config.json").read_bytes()
    for file, error in ((data, "exists and is not"), (folder / "config.json", "inside the model folder")):
        code, _, err = call(*arguments, file)
        assert code == 1
        assert str(file) in err
        assert error in err
    assert data.read_text(encoding="utf-8") == "it is good\tpositive\n"
    assert (folder / "config.json").read_bytes() == before
    assert call(*arguments, tmp_path / "new")[0] == 0
    assert call(*arguments, tmp_path / "new")[0] == 0  # its own file


def test_a_check_passes_or_fails(call, folder, tmp_path):
    code, out, _ = call("explain", folder, "--check", "--device", "cpu")
    assert code == 0
    assert out.count("ok  ") == len(out.splitlines()) >= 9
    broken = make(Classifier)
    with torch.no_grad():
        broken.model.encoder.layers[0].ffn.down_proj.weight.zero_()
    broken.save(tmp_path / "broken", "A tiny broken model.")
    code, out, _ = call("explain", tmp_path / "broken", "--check", "--text", "the cat", "--device", "cpu")
    assert code == 1
    assert "FAIL gradients reach every parameter" in out


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--text", "x"], "nothing to do: expected --out page.html, --json FILE, --check or --live"),
        (["--out", "page.html"], "--text is missing"),
        (["--text", "x", "--out", "."], "--out .: expected a file, but it is a folder"),
        (["--text", "x", "--out", "p.html", "--json", "p.html"], "--out p.html and --json p.html are the same file"),
        (["--text", "x", "--out", "p.html", "--max-tokens", "0"], "--max-tokens 0: expected 1 or more"),
        (["--live", "--out", "p.html"], "--out has no effect with --live"),
        (["--live", "--port", "-1"], "--port -1: expected 0 to 65535"),
    ],
)
def test_what_has_no_effect_is_refused(call, folder, arguments, error):
    code, _, err = call("explain", folder, *arguments)
    assert code == 2
    assert error in err


def test_an_unknown_part_is_named(call, folder):
    code, _, err = call("explain", folder, "--check", "--ablate", "encoder.layers.9.ffn", "--device", "cpu")
    assert code == 1
    assert "no part 'encoder.layers.9.ffn' to switch off" in err


def test_the_address_of_the_live_page_shows_what_the_flags_say(call, folder, monkeypatch):
    monkeypatch.setattr("glassformer.serve.http_server.serve", lambda *_, on_start: on_start("http://here"))
    code, out, _ = call("explain", folder, "--live", "--device", "cpu")
    assert (code, out) == (0, "explore model at http://here/explore\n")
    flags = ["--text", "a & b", "--beam", "3", "--max-tokens", "5", "--ablate", "positions", "encoder.layers.0.ffn"]
    code, out, _ = call("explain", folder, "--live", *flags, "--device", "cpu")
    address = out.rsplit(" at ", 1)[1].strip()
    assert code == 0
    assert address.startswith("http://here/explore#")
    expected = {"text": "a & b", "beam": "3", "off": "positions,encoder.layers.0.ffn", "max_tokens": "5"}
    assert dict(parse_qsl(address.partition("#")[2])) == expected
