"""Which generation settings of a folder are in effect, compared with HF's own reading of the same files."""

import json

import pytest
import transformers

from glassformer.checkpoint.hf.generation_settings import (
    FORCED_IDS,
    effective_settings,
    kept_settings,
    read_tasks,
    special_ids,
)


@pytest.mark.parametrize("stored", [{}, {"forced_eos_token_id": None}, {"forced_eos_token_id": 5, "num_beams": 3}])
@pytest.mark.parametrize("generation", [None, {"max_length": 7}, {"forced_eos_token_id": 6, "forced_bos_token_id": 4}])
def test_forced_ids_are_those_of_hf(stored, generation, tmp_path):
    config = {"model_type": "bart", "forced_bos_token_id": 3, **stored}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
        theirs = transformers.GenerationConfig.from_pretrained(tmp_path)
    else:  # as `from_pretrained` of HF's models does
        theirs = transformers.GenerationConfig.from_pretrained(
            tmp_path, config_file_name="config.json", _from_model_config=True
        )
    found = effective_settings(config, tmp_path)
    for key in (*FORCED_IDS, "num_beams", "max_length"):
        assert found.get(key) == getattr(theirs, key), key
    assert {key: special_ids(config, tmp_path).get(key) for key in FORCED_IDS} == {
        key: getattr(theirs, key) for key in FORCED_IDS
    }


def test_a_converted_model_keeps_what_is_in_effect(tmp_path):
    tasks = {"summarization": {"prefix": "summarize: "}}
    ids = {"eos_token_id": 2, "forced_eos_token_id": 2}
    config = {"model_type": "bart", "max_length": 9, **ids, "task_specific_params": tasks, "d_model": 16}
    assert kept_settings(config, tmp_path) == {"max_length": 9, "task_specific_params": tasks, **ids}
    (tmp_path / "generation_config.json").write_text('{"num_beams": 3}', encoding="utf-8")
    assert kept_settings(config, tmp_path) == {
        "num_beams": 3,
        "eos_token_id": 2,
        "forced_eos_token_id": None,
        "task_specific_params": tasks,
    }


def test_tasks_have_a_prefix():
    tasks = {"a": {"prefix": "one: "}, "b": {"max_length": 5}}
    assert read_tasks({"task_specific_params": tasks, "prefix": " "})["b"] == {"prefix": " ", "max_length": 5}
    assert {name: one["prefix"] for name, one in read_tasks({"task_specific_params": tasks}).items()} == {
        "a": "one: ",
        "b": "",
    }
    assert read_tasks({"task_specific_params": None}) == {}
    for wrong, message in (([], "task_specific_params=...: expected"), ({"a": 3}, "expected a table of tables")):
        with pytest.raises(ValueError, match=message.replace("...", r"\[1\]")):
            read_tasks({"task_specific_params": wrong or [1]})
    with pytest.raises(ValueError, match="has the prefix 3 for 'a': expected a text"):
        read_tasks({"task_specific_params": {"a": {"prefix": 3}}})
