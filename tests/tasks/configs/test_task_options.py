"""The options of a task: their names, and the config that given options make."""

from pathlib import Path

from glassformer.tasks.configs.task_options import make_config
from glassformer.tasks.task_registry import config_named


def test_a_config_is_the_defaults_and_what_was_given():
    kind = config_named("translation")
    assert make_config(kind, {}) == kind()
    config = make_config(kind, {"train.lr": 0.5, "model.d_model": 64, "start_from": "x"})
    assert (config.train.lr, config.model.d_model, config.start_from) == (0.5, 64, Path("x"))
    assert config.train.warmup == kind().train.warmup
