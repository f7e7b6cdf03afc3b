import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from glassformer.cli import main
from glassformer.cli.run_options import ComputeOptions
from glassformer.cli.serve import _load
from glassformer.pipelines.classifier import Classifier
from pipelines.tiny_pipelines import make


def call(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["glassformer", "serve", *map(str, arguments)])
    with pytest.raises(SystemExit) as caught:
        main()
    return caught.value.code, capsys.readouterr()


def test_the_help_shows_how_to_begin(monkeypatch, capsys):
    code, printed = call(monkeypatch, capsys, "--help")
    assert code == 0
    for word in ("--api-key", "--max-queue", "--keep-loaded", "/v1/chat/completions", "/docs", "NAME=MODEL", "curl"):
        assert word in printed.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "MODELS is missing"),
        (("m", "--port", 70000), "--port 70000: expected 0 to 65535"),
        (("m", "--max-queue", 0), "--max-queue 0: expected 1 or more"),
        (("m", "--timeout", 0), "--timeout 0: expected more than 0"),
        (("m", "--rate", -1), "--rate -1: expected 0 or more"),
        (("m", "--cache-tokens", 5), "expected at least --max-rows 32"),
        (("m", "--api-key", "a b"), "--api-key: expected printable ASCII"),
        (("m", "--keep-loaded", "nan"), "--keep-loaded"),
    ],
)
def test_wrong_options_end_with_code_2(monkeypatch, capsys, arguments, message):
    code, printed = call(monkeypatch, capsys, *arguments)
    assert code == 2
    assert message in printed.err


def test_a_missing_model_is_named(monkeypatch, capsys, tmp_path):
    code, printed = call(monkeypatch, capsys, tmp_path / "nothing", "--port", 0)
    assert code == 1
    assert "no such model folder" in printed.err


def test_a_missing_further_model_is_named_before_the_first_is_loaded(monkeypatch, capsys, tmp_path):
    make(Classifier).save(tmp_path / "first", "A tiny random model.")
    monkeypatch.setattr(ComputeOptions, "load", lambda self, path: pytest.fail("a model was loaded"))
    code, printed = call(monkeypatch, capsys, tmp_path / "first", f"other={tmp_path / 'nothing'}", "--port", 0)
    assert code == 1
    assert "nothing: no such model folder" in printed.err


def test_a_model_larger_than_keep_loaded_is_named_without_a_traceback(monkeypatch, capsys, tmp_path):
    make(Classifier).save(tmp_path / "first", "A tiny random model.")
    monkeypatch.setattr(ComputeOptions, "load", lambda self, path: pytest.fail("a model was loaded"))
    code, printed = call(monkeypatch, capsys, tmp_path / "first", "--keep-loaded", 1e-9, "--port", 0)
    assert code == 1
    assert printed.err.startswith("glassformer: ")
    assert "GB: expected at most --keep-loaded 1e-09; raise it" in printed.err


def test_without_its_packages_the_install_command_is_shown(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "fastapi", None)
    code, printed = call(monkeypatch, capsys, "m")
    assert code == 1
    assert "pip install 'glassformer[serve]'" in printed.err


def test_an_open_address_without_keys_is_warned_about(monkeypatch, capsys, tmp_path):
    monkeypatch.delenv("GLASSFORMER_API_KEYS", raising=False)
    _, printed = call(monkeypatch, capsys, tmp_path / "nothing", "--host", "0.0.0.0")
    assert "without --api-key" in printed.err


@pytest.mark.parametrize(
    ("kind", "compile", "is_told"),
    [("decoder", "on", True), ("decoder", "auto", False), ("encoder_decoder", "on", False)],
)
def test_compiling_a_model_that_continues_texts_has_no_effect(monkeypatch, capsys, kind, compile, is_told):
    pipeline = SimpleNamespace(model=SimpleNamespace(kind=kind))
    monkeypatch.setattr(ComputeOptions, "load", lambda self, path: pipeline)
    assert _load(ComputeOptions(compile=compile), Path("m")) is pipeline
    assert ("--compile on has no effect on m" in capsys.readouterr().err) == is_told
