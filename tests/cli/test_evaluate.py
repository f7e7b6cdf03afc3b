"""`glassformer eval`: what it says while it works, and of folders that name no task."""

import pytest

from glassformer.cli.evaluate import evaluate
from glassformer.pipelines.conversion import convert
from glassformer.pipelines.translator import Translator
from pipelines.tiny_pipelines import make


def test_a_model_in_another_librarys_format_is_refused_with_what_to_do(tmp_path):
    make(Translator).save(tmp_path / "ours", "card")
    convert(tmp_path / "ours", tmp_path / "hf", "hf")
    for name in ("test.en", "test.de"):
        (tmp_path / name).write_text("one\n", encoding="utf-8")
    arguments = [str(tmp_path / "hf"), "--source", str(tmp_path / "test.en"), "--target", str(tmp_path / "test.de")]
    with pytest.raises(ValueError, match=r"names no task.*glassformer run .*hf --input FILE --output NEW_FILE"):
        evaluate(arguments)
    convert(tmp_path / "hf", tmp_path / "copy", "safetensors")
    with pytest.raises(ValueError, match="names no task"):
        evaluate([str(tmp_path / "copy"), *arguments[1:]])
    (tmp_path / "hf" / "manifest.json").unlink()  # as other programs write such a folder
    with pytest.raises(ValueError, match="names no task"):
        evaluate(arguments)


def test_progress_is_shown_while_texts_are_written_and_can_be_turned_off(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("glassformer.progress.PLAIN_EVERY", 0.0)
    make(Translator).save(tmp_path / "ours", "card")
    for name in ("test.en", "test.de"):
        (tmp_path / name).write_text("one\n", encoding="utf-8")
    arguments = [str(tmp_path / "ours"), "--source", str(tmp_path / "test.en"), "--target", str(tmp_path / "test.de")]
    evaluate(arguments)
    told = capsys.readouterr()
    assert "loading torch" in told.err
    assert "writing texts" in told.err
    assert "beam" in told.out
    evaluate([*arguments, "--quiet"])
    quiet = capsys.readouterr()
    assert (quiet.err, quiet.out) == ("", told.out)
