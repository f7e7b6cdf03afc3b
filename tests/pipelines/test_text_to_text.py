"""A pretrained encoder-decoder writes what HF Transformers writes."""

import json
import random
from dataclasses import replace

import pytest
import torch

from checkpoint import hf_models
from glassformer.pipelines.load import load
from glassformer.pipelines.text_to_text import TextToText
from pipelines.hf_folders import save_tokenizer
from pipelines.tiny_pipelines import make
from text.language_tokenizers import KINDS, save_language_model


@pytest.mark.parametrize("family", hf_models.PAIRS)
def test_an_encoder_decoder_writes_what_hf_writes(family, tmp_path):
    draw, class_name = hf_models.PAIRS[family]
    config = draw(random.Random(0))
    config.num_decoder_layers = getattr(config, "num_layers", None)
    theirs = hf_models.make(config, class_name, 0)
    theirs.generation_config.num_beams, theirs.generation_config.max_length = 2, 9
    theirs.save_pretrained(tmp_path)
    save_tokenizer(tmp_path, around="$0 </s>")
    model = load(tmp_path)
    assert isinstance(model, TextToText)
    ids = torch.tensor([model.source_tokenizer.encode("the cat sat")])
    written = theirs.generate(
        ids, num_beams=2, max_length=9, do_sample=False, eos_token_id=0, pad_token_id=1, bad_words_ids=[[1]]
    )
    expected = written[0, 1:].tolist()
    expected = expected[: expected.index(0)] if 0 in expected else expected
    assert model.run(["the cat sat", ""]) == [model.target_tokenizer.decode(expected), ""]


SEARCHES = {
    "lengths with the start token": {"max_length": 12, "min_length": 9},
    "lengths of new tokens": {"max_new_tokens": 10, "min_new_tokens": 7, "max_length": 5, "min_length": 3},
    "repetition": {"max_length": 14, "repetition_penalty": 2.5, "min_length": 4},
}


@pytest.mark.parametrize("place", ["generation_config.json", "config.json"])
@pytest.mark.parametrize("name", SEARCHES)
def test_the_search_settings_of_a_folder_are_those_of_hf(name, place, tmp_path):
    """BART models for summaries have a min_length, for example."""
    settings = {"num_beams": 2, **SEARCHES[name]}
    draw, class_name = hf_models.PAIRS["bart"]
    theirs = hf_models.make(draw(random.Random(1)), class_name, 1)
    theirs.save_pretrained(tmp_path)
    save_tokenizer(tmp_path, around="$0 </s>")
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "generation_config.json").unlink()
    if place == "config.json":
        config |= settings
    else:
        config |= {"max_length": 3, "min_length": 2}  # not read beside a generation_config.json
        (tmp_path / place).write_text(json.dumps(settings), encoding="utf-8")
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    model = load(tmp_path)
    for text in ("the cat sat", "a dog and the cat", "cat"):
        ids = torch.tensor([model.source_tokenizer.encode(text)])
        written = theirs.generate(
            ids,
            **settings,
            do_sample=False,
            eos_token_id=0,
            pad_token_id=1,
            bad_words_ids=[[1]],
            forced_bos_token_id=None,
            forced_eos_token_id=None,
        )
        expected = written[0, 1:].tolist()
        expected = expected[: expected.index(0)] if 0 in expected else expected
        assert model.run(text) == model.target_tokenizer.decode(expected)


def test_a_long_source_keeps_its_last_token():
    tool = make(TextToText)
    tool.truncate = True
    (ids,) = tool.read_sources(["the old cat " * 60])
    assert len(ids) == tool.model.config.max_len
    assert ids[-1] == tool.source_tokenizer.encode("the old cat " * 60)[-1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_translator_of_many_languages_writes_what_hf_writes(kind, tmp_path, count):
    for seed in range(count(1, 30)):
        theirs, words, source, target = save_language_model(tmp_path / str(seed), kind, seed)
        pipeline = load(tmp_path / str(seed))
        with pytest.raises(ValueError, match=r"the model writes \d+ languages.* --target-language"):
            pipeline.run("one")
        codes = [*pipeline.languages.codes]
        for read, written in ((source, target), (target, codes[0]), (codes[2], source)):
            words.src_lang = read
            code = words.convert_tokens_to_ids(written)
            start = {"decoder_start_token_id": code} if kind == "mbart" else {"forced_bos_token_id": code}
            ours = pipeline.with_languages(read, written)
            for text in ("one two", "zwei one drei"):
                given = words(text, return_tensors="pt")
                assert ours.read_sources([text]) == given["input_ids"].tolist()
                for beams in (1, 3):
                    found = theirs.generate(**given, **start, num_beams=beams, bad_words_ids=[[1]])[0, 1:].tolist()
                    found = found[: found.index(2)] if 2 in found else found
                    (one,) = ours.candidates([text], replace(ours.generation, num_beams=beams))[0]
                    expected = words.decode(found, skip_special_tokens=True)
                    assert one.text == expected, (seed, read, written, beams)
        assert pipeline.with_languages() is pipeline


def test_languages_are_checked_by_the_codes_of_the_model(tmp_path):
    save_language_model(tmp_path / "a", "nllb", forced_bos_token_id=5)
    pipeline = load(tmp_path / "a")
    with pytest.raises(ValueError, match=r"target language 'de': the model has no such .* 3 codes: deu_Latn"):
        pipeline.with_languages("eng", "de")
    with pytest.raises(ValueError, match="source language 'en', target language '': expected none, because"):
        make(TextToText).with_languages("en")
    assert make(TextToText).with_languages().check_languages() is None
