"""Which generation settings of a Hugging Face folder are in effect."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glassformer.base.checks import shown
from glassformer.checkpoint.hf.folder import read_json_table

GENERATION = "generation_config.json"
TASKS = "task_specific_params"
"""Key of config.json for the settings of tasks, such as `{"summarization": {"prefix": "summarize: "}}`."""
KEPT_KEYS = (
    *("num_beams", "max_length", "min_length", "max_new_tokens", "min_new_tokens", "length_penalty", "early_stopping"),
    *("no_repeat_ngram_size", "repetition_penalty", "bad_words_ids", "suppress_tokens", "prefix", TASKS),
)
"""Settings, beside ids of tokens, that decide which texts a model generates. A converted model keeps them."""
FORCED_IDS = ("forced_bos_token_id", "forced_eos_token_id")


def effective_settings(config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the settings that HF's `generate` uses, without nulls. `config` holds the values of config.json.

    As in HF, a generation_config.json replaces the settings in config.json.
    """
    file = folder / GENERATION
    found = read_json_table(file) if file.is_file() else config
    return {key: value for key, value in found.items() if value is not None}


def special_ids(config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the ids of special tokens (`eos_token_id`, ...) of a folder. The forced ones are None if not in effect.

    An id that generation_config.json lacks is that of config.json, unless it is a forced one.
    """
    settings = effective_settings(config, folder)
    found = {key: value for key, value in {**config, **settings}.items() if key.endswith("_token_id")}
    return found | {key: settings.get(key) for key in FORCED_IDS if key in {**config, **settings}}


def kept_settings(config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return what decides which texts a model generates: the settings in effect, and those of its tasks."""
    settings = effective_settings(config, folder)
    from_config = {key: config[key] for key in ("prefix", TASKS) if config.get(key) is not None}
    return from_config | {key: settings[key] for key in KEPT_KEYS if key in settings} | special_ids(config, folder)


def read_tasks(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the settings of tasks in config.json, by the tasks' names. Each has a "prefix", which may be empty."""
    tasks = config.get(TASKS) or {}
    if not isinstance(tasks, Mapping) or not all(isinstance(one, Mapping) for one in tasks.values()):
        raise ValueError(f"config.json has {TASKS}={shown(tasks)}: expected a table of tables")
    found = {str(name): {"prefix": config.get("prefix"), **one} for name, one in tasks.items()}
    for name, one in found.items():
        one["prefix"] = "" if one["prefix"] is None else one["prefix"]
        if not isinstance(one["prefix"], str):
            raise ValueError(f"config.json has the prefix {shown(one['prefix'])} for {shown(name)}: expected a text")
    return found
