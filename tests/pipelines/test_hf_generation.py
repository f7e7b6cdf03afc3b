"""The texts of a pretrained encoder-decoder are those of HF's `generate` with the settings of the same folder."""

import json
import logging
import random

import pytest
import torch
import transformers

from checkpoint import hf_models
from glassformer.pipelines.conversion import convert
from glassformer.pipelines.load import load
from pipelines.hf_folders import save_tokenizer

TEXTS = ["the cat sat", "a dog and the cat", "cat", "w13 w14 w15 the mat"]


def save(folder, family, seed=0, *, config=None, generation=None):
    """Save a random model of HF with a tokenizer, and return it as HF loads it. Its texts rarely end by themselves."""
    draw, class_name = hf_models.PAIRS[family]
    drawn = draw(random.Random(seed))
    drawn.eos_token_id, drawn.num_decoder_layers = 0, getattr(drawn, "num_layers", None)
    hf_models.make(drawn, class_name, seed).save_pretrained(folder)
    save_tokenizer(folder, around="$0 </s>")
    values = json.loads((folder / "config.json").read_text(encoding="utf-8")) | (config or {})
    (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")
    (folder / "generation_config.json").unlink()
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    return getattr(transformers, class_name).from_pretrained(folder).eval()


def written_by_hf(theirs, tokenizer, text, **changes):
    """Return the text that HF's `generate` writes with the settings of its folder and these changes."""
    ids = torch.tensor([tokenizer.encode(text)])
    with torch.no_grad():
        found = theirs.generate(ids, do_sample=False, pad_token_id=1, suppress_tokens=[1], **changes)[0, 1:].tolist()
    return tokenizer.decode(found[: found.index(0)] if 0 in found else found)


SETTINGS = {
    "greedy": {"num_beams": 1, "max_length": 7},
    "beams": {"num_beams": 3, "max_length": 7},
    "long texts win": {"num_beams": 3, "max_length": 6, "length_penalty": 2.0, "early_stopping": True},
    "bad words": {"num_beams": 2, "max_length": 8, "bad_words_ids": [[0], [12], [13, 14]]},
}


@pytest.mark.parametrize("place", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("family", ["bart", "marian"])
@pytest.mark.parametrize("name", SETTINGS)
def test_a_text_that_reaches_its_limit_ends_as_in_hf(name, family, place, tmp_path, count):
    n_at_limit = 0
    for seed in range(count(1, 20)):
        folder = tmp_path / str(seed)
        settings = {"forced_eos_token_id": 0, "eos_token_id": 0, **SETTINGS[name]}
        if place == "config.json":
            theirs = save(folder, family, seed, config=settings)
        else:
            whole = {**settings, "decoder_start_token_id": 1}
            theirs = save(folder, family, seed, config={"max_length": 3}, generation=whole)
        ours = load(folder)
        assert ours.generation.forced_eos_token_id == 0
        for text in TEXTS:
            expected = written_by_hf(theirs, ours.source_tokenizer, text)
            assert ours.run(text) == expected, (seed, text)
            n_at_limit += expected != written_by_hf(theirs, ours.source_tokenizer, text, forced_eos_token_id=None)
    assert n_at_limit, "no text reached the limit"


TASKS = {
    "summarization": {"prefix": "w10 w11 : ", "max_length": 9, "num_beams": 3, "length_penalty": 2.0, "min_length": 5},
    "translation_en_to_de": {"prefix": "w12 the ", "max_length": 6, "num_beams": 1},
    "summarization_cnn": {"max_length": 5, "no_repeat_ngram_size": 2, "early_stopping": True},
}


@pytest.mark.parametrize("family", ["t5", "bart"])
@pytest.mark.parametrize("name", TASKS)
def test_a_task_has_the_prefix_and_the_settings_of_its_folder(name, family, tmp_path):
    """HF's pipelines put the prefix before each text, and update the generation settings."""
    theirs = save(tmp_path, family, 3, config={"task_specific_params": TASKS, "eos_token_id": 0, "num_beams": 2})
    ours = load(tmp_path)
    task = ours.with_task(name)
    changes = {key: value for key, value in TASKS[name].items() if key != "prefix"}
    for text in TEXTS:
        source = TASKS[name].get("prefix", "") + text
        expected = written_by_hf(theirs, ours.source_tokenizer, source, **{"num_beams": 2, **changes})
        assert task.run(text) == expected, text
        assert task.run(source) == expected, "the prefix is not put before a text that has it"
    assert ours.source_prefix == ""
    with pytest.raises(ValueError, match=r"task 'translation': .* expected one of summarization, translation_en_to_de"):
        ours.with_task("translation")


def test_a_model_without_tasks_says_so(tmp_path):
    save(tmp_path, "t5", 3, config={"eos_token_id": 0})
    with pytest.raises(ValueError, match=r"task 'summarization': .*config\.json has none"):
        load(tmp_path).with_task("summarization")


@pytest.mark.parametrize("to", ["safetensors", "hf"])
@pytest.mark.parametrize("generation", [None, {"num_beams": 2, "max_length": 6, "decoder_start_token_id": 1}])
def test_a_converted_model_writes_the_same_texts(to, generation, tmp_path):
    config = {"task_specific_params": TASKS, "num_beams": 3, "max_length": 8, "forced_eos_token_id": 0}
    save(tmp_path / "a", "bart", 4, config={**config, "eos_token_id": 0}, generation=generation)
    convert(tmp_path / "a", tmp_path / "b", to)
    convert(tmp_path / "b", tmp_path / "c", "hf")
    first, *others = (load(tmp_path / name) for name in "abc")
    for other in others:
        assert (other.generation, other.tasks, other.begin) == (first.generation, first.tasks, first.begin)
        assert other.run(TEXTS) == first.run(TEXTS)


def test_settings_that_are_not_applied_are_named(tmp_path, caplog):
    save(tmp_path, "t5", 3, config={"eos_token_id": 0, "do_sample": True, "num_beam_groups": 1})
    with caplog.at_level(logging.WARNING):
        load(tmp_path)
    assert "generation settings that are not applied: do_sample=True" in caplog.text
    assert "num_beam_groups" not in caplog.text


def test_wrong_lists_are_refused(tmp_path):
    save(tmp_path, "t5", 3, config={"eos_token_id": 0, "bad_words_ids": 7})
    with pytest.raises(ValueError, match="bad_words_ids=7: expected a list"):
        load(tmp_path)
