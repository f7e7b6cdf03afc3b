"""The options of a task: their names, and the config that given options make."""

from pathlib import Path

import pytest

from glassformer.base.dataclass_flags import field_docs, options_of
from glassformer.tasks.classification import ClassificationConfig
from glassformer.tasks.configs.task_options import given_options, make_config
from glassformer.tasks.task_registry import config_named
from glassformer.training.train_config import TrainConfig


def test_a_config_is_the_defaults_and_what_was_given():
    kind = config_named("translation")
    assert make_config(kind, {}) == kind()
    config = make_config(kind, {"train.lr": 0.5, "model.d_model": 64, "start_from": "x"})
    assert (config.train.lr, config.model.d_model, config.start_from) == (0.5, 64, Path("x"))
    assert config.train.warmup == kind().train.warmup


def test_options_have_flat_names_dotted_paths_and_the_docstring_of_the_field():
    options = options_of(ClassificationConfig)
    assert options["lr"].path == "train.lr"
    assert options["from"].path == "start_from"
    assert options["text_column"].flag == "--text-column"
    assert options["text_column"].about == "Column of the texts."
    assert field_docs(TrainConfig)["lr"][0] == options["lr"].about


def test_given_options_may_be_flat_or_dotted_and_a_typo_gets_a_suggestion():
    assert given_options(ClassificationConfig, {"lr": 1, "model.d_model": 8}) == {"train.lr": 1, "model.d_model": 8}
    with pytest.raises(TypeError, match="'warmpu' is not an option of ClassificationConfig: did you mean 'warmup'"):
        given_options(ClassificationConfig, {"warmpu": 1})
