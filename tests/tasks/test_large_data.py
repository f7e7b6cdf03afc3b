"""Training on data in shards: prepared before, or large."""

import json

import pytest

import glassformer
from glassformer.tasks.configs import divided_data
from glassformer.tasks.configs.task_options import make_config
from glassformer.tasks.language import LanguageConfig
from glassformer.tasks.prepare_corpus import prepare_corpus
from glassformer.tasks.translation import TranslationConfig

TINY = {"d_model": 16, "n_heads": 2, "d_ff": 16, "updates": 4, "max_tokens": 200, "device": "cpu", "threads": 1}
SMALL = {**TINY, "n_encoder_layers": 1, "n_decoder_layers": 1}


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("source\ttarget\n" + "".join(f"one {n}\ttwo {n}\n" for n in range(90)), encoding="utf-8")
    return path


def weights(folder):
    return (folder / "model.safetensors").read_bytes()


def test_training_on_prepared_data_is_resumed_exactly(table, tmp_path):
    options = {"data.source": [table], "model.vocab_size": 300, "model.max_len": 20}
    prepare_corpus("translation", make_config(TranslationConfig, options), tmp_path / "data", processes=1)
    given = {**SMALL, "prepared": tmp_path / "data", "save_every": 2}
    glassformer.train("translation", out=tmp_path / "whole", **given)

    def stop(event):
        if event.update == 3:
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        glassformer.train("translation", out=tmp_path / "parts", on_step=stop, **given)
    glassformer.train("translation", out=tmp_path / "parts", **given)
    assert weights(tmp_path / "whole") == weights(tmp_path / "parts")
    card = (tmp_path / "whole" / "README.md").read_text(encoding="utf-8")
    assert "a.tsv" in card
    with pytest.raises(ValueError, match=r"--vocab-size 400: expected 300, with which .* was prepared"):
        glassformer.train("translation", out=tmp_path / "x", **given, vocab_size=400)
    with pytest.raises(ValueError, match="is for translation: expected data for language"):
        glassformer.train("language", out=tmp_path / "x", prepared=tmp_path / "data")


def test_large_files_are_tokenized_in_shards(table, tmp_path, monkeypatch):
    monkeypatch.setattr(divided_data, "LARGE_BYTES", 100)
    glassformer.train("translation", out=tmp_path / "m", source=table, vocab_size=300, **SMALL)
    assert list((tmp_path / "m.run" / "tokens").glob("*/corpus/prepared.json"))
    glassformer.train("translation", out=tmp_path / "m", source=table, vocab_size=300, **SMALL)  # complete: resumes


def test_a_damaged_shard_of_a_run_is_made_anew(table, tmp_path, monkeypatch):
    monkeypatch.setattr(divided_data, "LARGE_BYTES", 100)
    given = {**SMALL, "source": table, "vocab_size": 300}
    glassformer.train("translation", out=tmp_path / "m", **given)
    (shard,) = (tmp_path / "m.run" / "tokens").rglob("units/*/v0/*/source.bin")
    content = shard.read_bytes()
    shard.write_bytes(content[:-4])
    glassformer.train("translation", out=tmp_path / "m", accept_changes=True, **{**given, "updates": 6})
    assert shard.read_bytes() == content


def test_a_language_model_is_trained_on_a_mix(tmp_path):
    for name in ("news", "web"):
        lines = [json.dumps({"text": f"{name} text number {n}"}) for n in range(60)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    files = [tmp_path / "news.jsonl", tmp_path / "web.jsonl"]
    given = {"data": files, "mix": "news=0.9,web=0.1", "vocab_size": 300, "context": 16, "n_decoder_layers": 1, **TINY}
    scores = glassformer.train("language", out=tmp_path / "m", **given)
    assert scores["perplexity"] > 1
    with pytest.raises(ValueError, match=r"--mix .* with --from: expected a model that is trained from scratch"):
        glassformer.train("language", out=tmp_path / "x", data=files, mix="news=1,web=1", start_from=tmp_path / "m")


def test_prepared_text_is_trained_with_any_context(tmp_path):
    (tmp_path / "a.txt").write_text("a line of text\n" * 300, encoding="utf-8")
    config = make_config(LanguageConfig, {"data.data": [tmp_path / "a.txt"], "model.vocab_size": 300})
    prepare_corpus("language", config, tmp_path / "data", processes=1)
    given = {"prepared": tmp_path / "data", "context": 8, "n_decoder_layers": 1, **TINY}
    assert glassformer.train("language", out=tmp_path / "m", **given)["loss"] > 0
