"""Turn the generation settings of a Hugging Face folder into a `GenerationConfig`, and those of its tasks likewise."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from glassformer.base.checks import shown
from glassformer.checkpoint.hf.generation_settings import effective_settings, read_tasks
from glassformer.checkpoint.hf.values import read_bool, read_float, read_int
from glassformer.decoding import GenerationConfig
from glassformer.pipelines.seq2seq_pipeline import check_cost
from glassformer.text.pretrained_tokenizers import PretrainedTokenizer

NOT_APPLIED = {
    "do_sample": False,
    "num_beam_groups": 1,
    "diversity_penalty": 0.0,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "begin_suppress_tokens": None,
    "exponential_decay_length_penalty": None,
    "forced_decoder_ids": None,
    "sequence_bias": None,
}
"""Settings that change what HF's `generate` writes and that are not applied here, with the values that do not."""
_LOG = logging.getLogger(__name__)


class TaskSettings(NamedTuple):
    """How a pretrained model does one task, as HF's pipelines do it."""

    prefix: str
    """What precedes each source text, such as "summarize: "."""
    generation: GenerationConfig


def read_generation(
    config: Mapping[str, Any], folder: Path, target: PretrainedTokenizer, vocab_size: int
) -> tuple[GenerationConfig, dict[str, TaskSettings]]:
    """Return the generation settings of an encoder-decoder, and its settings for tasks, by their names.

    `config` holds the values of config.json, and `target` is the tokenizer of the texts that are written.
    """
    settings = effective_settings(config, folder)
    ignored = [key for key, neutral in NOT_APPLIED.items() if settings.get(key, neutral) != neutral]
    if ignored:
        listed = ", ".join(f"{key}={shown(settings[key])}" for key in ignored)
        _LOG.warning("%s: generation settings that are not applied: %s", folder, listed)
    found = {}
    for name, changes in read_tasks(config).items():
        changed = settings | {key: value for key, value in changes.items() if value is not None}
        found[name] = TaskSettings(changes["prefix"], _search(folder, changed, target, vocab_size))
    return _search(folder, settings, target, vocab_size), found


def _search(path: Path, settings: Mapping[str, Any], target: PretrainedTokenizer, vocab_size: int) -> GenerationConfig:
    """Return the search that HF's `generate` makes with these settings, but with 4 beams by default.

    HF counts the start token in max_length and min_length, but not in max_new_tokens and min_new_tokens, which replace
    them.
    """
    beams = read_int(settings, "num_beams", default=4)
    most, least = read_int(settings, "max_length", default=512), read_int(settings, "min_length", default=0)
    longest = read_int(settings, "max_new_tokens", default=most - (most > 1))
    shortest = read_int(settings, "min_new_tokens", default=least - 1)
    check_cost(path, beams, longest)
    stops, pad, end = settings.get("early_stopping"), target.pad, target.end
    first, last = (read_int(settings, f"forced_{side}_token_id", default=-1) for side in ("bos", "eos"))
    suppressed, bad_runs = (_read_list(settings, key) for key in ("suppress_tokens", "bad_words_ids"))
    return GenerationConfig(
        num_beams=beams,
        max_new_tokens=longest,
        min_new_tokens=min(max(shortest, 0), longest),
        length_penalty=read_float(settings, "length_penalty", default=1.0),
        no_repeat_ngram_size=read_int(settings, "no_repeat_ngram_size", default=0),
        repetition_penalty=read_float(settings, "repetition_penalty", default=1.0),
        early_stopping="never" if stops == "never" else read_bool(settings, "early_stopping", default=False),
        # Marian has a logit for padding, which must never be generated.
        suppress_tokens=(*suppressed, *(() if pad is None or pad == end else (pad,))),
        # As in HF, a text may end in any case.
        bad_words_ids=tuple(tuple(run) if isinstance(run, list) else run for run in bad_runs if run != [end]),
        prefix=(first,) if 0 <= first < vocab_size else (),
        forced_eos_token_id=last if 0 <= last < vocab_size else None,
    )


def _read_list(settings: Mapping[str, Any], key: str) -> list[Any]:
    found = settings.get(key, [])
    if not isinstance(found, list):
        raise ValueError(f"config.json has {key}={shown(found)}: expected a list")
    return found
