"""Choose the options that the user did not give: measure this machine's speed and apply `configs/defaults.py`."""

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from glassformer.base.checks import shown
from glassformer.base.dataclass_flags import options_of
from glassformer.checkpoint.summary import summarize
from glassformer.progress import Step
from glassformer.tasks.configs.corpus_size import CorpusSize
from glassformer.tasks.configs.defaults import (
    TRAINING_SHARE,
    Size,
    TrainingBudget,
    choose_defaults,
    choose_for_fine_tuning,
    default_minutes,
)
from glassformer.tasks.configs.shared import TaskConfig
from glassformer.tasks.configs.task_options import AUTOMATIC, make_config
from glassformer.tasks.warm_start import architecture_options, was_trained_here
from glassformer.training.estimate import rough_duration
from glassformer.training.training_speed import fastest_threads, measure_training_speed

REFERENCE_SPEED = 3e10
"""Floating-point operations per second of training on two slow CPU cores."""


def choose(
    config: TaskConfig, given: Mapping[str, Any], corpus: CorpusSize, *, size: Size, began: float
) -> dict[str, Any]:
    """Return values for the options of a task that the user did not give, by dotted name.

    A new model gets options that fit the corpus, the time and the speed of this machine, which is measured here.
    Fine-tuning (`--from`) gets fixed options. A grown model (`--grow-from`) gets the architecture of the small one.

    Args:
        config: The task's config with the given options and its fixed defaults.
        given: The given options, by dotted name.
        corpus: The size of the training data.
        size: The size of the model, or "auto".
        began: Value of `time.perf_counter` when the command began. The time since then is already used up.
    """
    kind = type(config)
    _check_tokenizer(config)
    if config.start_from is not None:
        _check_architecture(config.start_from, given, size)
        is_pretrained = not was_trained_here(config.start_from)
        needs_limit = "context" in options_of(kind) and "context" not in given
        longest = summarize(config.start_from).config.max_len if needs_limit else None
        return choose_for_fine_tuning(kind, given, is_pretrained=is_pretrained, longest=longest)
    base: dict[str, Any] = {}
    if config.grow_from is not None:
        base = architecture_options(config.grow_from, config.model.head)
        _check_growth(config.grow_from, base, given, size)
        if "context" in options_of(kind):
            base["context"] = base["model.max_len"]
        given = {**base, **given}
    minutes = default_minutes(kind, given)
    left = max(60 * minutes - (time.perf_counter() - began), 6 * minutes)
    speed = TrainingBudget(
        TRAINING_SHARE * left if minutes else 0.0, given.get("train.updates", 0), partial(_measure, corpus=corpus)
    )
    with Step("measuring the speed of this machine"):
        if minutes and (threads := _threads(config, corpus, minutes)):
            given = {**given, "train.threads": threads}
        return {**base, **choose_defaults(kind, given, corpus, speed, size)}


def _check_architecture(start_from: Path, given: Mapping[str, Any], size: Size) -> None:
    """Raise ValueError if options ask for another architecture than that of the model of --from, which stays."""
    instead = "expected no such option; --grow-from makes a model larger"
    if size != "auto":
        raise ValueError(f"--size {size} has no effect with --from {start_from}: {instead}")
    asked = {path.removeprefix("model."): value for path, value in given.items() if path.startswith("model.")}
    own = summarize(start_from).config if asked else None
    for name, value in asked.items():
        found = getattr(own, name)
        is_limit = name in ("vocab_size", "source_vocab_size") and None not in (value, found)  # of a new tokenizer
        if found != value and not (is_limit and value > found):
            raise ValueError(
                f"{name}={shown(value)} has no effect with --from {start_from}, whose model has {shown(found)}: "
                f"{instead}"
            )


def _check_growth(grow_from: Path, base: Mapping[str, Any], given: Mapping[str, Any], size: Size) -> None:
    """Raise ValueError for options that do not change the model of --grow-from, of which `base` is the architecture."""
    if size != "auto":
        raise ValueError(
            f"--size {size} has no effect with --grow-from {grow_from}: expected the larger sizes themselves, such as "
            "--d-model or the number of layers"
        )
    for name in ("model.vocab_size", "model.source_vocab_size"):
        if name in given and given[name] != base.get(name):
            raise ValueError(
                f"{name.removeprefix('model.')}={shown(given[name])} has no effect with --grow-from {grow_from}, whose "
                f"tokenizer stays: expected {shown(base.get(name))} or no such option"
            )


def _check_tokenizer(config: TaskConfig) -> None:
    """Raise ValueError if options name a tokenizer beside a trained model, which has one."""
    if config.base_model is not None and config.tokenizer.tokenizer_file is not None:
        raise ValueError(
            f"--tokenizer-file {config.tokenizer.tokenizer_file} has no effect with {config.base_flag} "
            f"{config.base_model}, whose tokenizer stays: expected one of them"
        )


def in_words(chosen: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """Return one line for the user with the options in `chosen` that are not in `given`, as command-line flags."""
    flags = []
    for path, value in chosen.items():
        name = path.rpartition(".")[2]
        is_of_small_model = "grow_from" in given and path.startswith("model.") and not name.endswith("dropout")
        is_silent = is_of_small_model or name in ("init", "init_std", "save_every", "minutes")
        if path in AUTOMATIC and path not in given and not is_silent:
            flags.append(f"--{name.replace('_', '-')} {value}")
    minutes = chosen.get("train.minutes")
    for_time = f" and {rough_duration(60 * minutes)}" if minutes else ""
    usual = " (the default; --minutes changes it)" if minutes and "train.minutes" not in given else ""
    busy = (
        " (other programs are busy here: fewer threads are faster)" if "train.threads" in chosen.keys() - given else ""
    )
    return f"chosen for this data{for_time}{usual}: {' '.join(flags)}{busy}"


def _threads(config: TaskConfig, corpus: CorpusSize, minutes: float) -> int:
    """Measure with a small model which number of threads trains fastest, and return it; 0 is torch's default."""
    kind = type(config)
    unmeasured = TrainingBudget(TRAINING_SHARE * 60 * minutes, 0, lambda config: REFERENCE_SPEED)
    small = make_config(kind, choose_defaults(kind, {}, corpus, unmeasured))
    train = replace(small.train, device=config.train.device, threads=config.train.threads, minutes=minutes)
    return fastest_threads(small.model, train, max(corpus.lengths()))


def _measure(config: TaskConfig, *, corpus: CorpusSize) -> float:
    return measure_training_speed(config.model, config.train, max(corpus.lengths()))
