"""The default architectures."""

import pytest

from glassformer.models import build_model
from glassformer.tasks.configs import small_models
from glassformer.tasks.task_registry import TASKS, config_named

MAKERS = [
    small_models.small_encoder_decoder,
    small_models.small_encoder,
    small_models.small_language_encoder,
    small_models.small_tagger,
    small_models.small_decoder,
]


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_a_default_architecture_is_small_enough_for_two_cores(make):
    config = make()
    assert build_model(config).n_parameters() < 5_000_000
    if make is not small_models.small_language_encoder:
        assert make(d_model=64).d_model == 64


@pytest.mark.parametrize("task", TASKS)
def test_every_task_has_a_complete_default_config(task):
    config = config_named(task)()
    assert config.model.kind in ("encoder", "decoder", "encoder_decoder")
    assert config.train.updates > 0
