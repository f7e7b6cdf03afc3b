"""Which checkpoint is the best one, and which are kept. `test_trainer.py` trains and compares the parameters."""

import math

import pytest

from glassformer.training.checkpoint_choice import best_evaluation, discard_old, ranking_score
from glassformer.training.state import Evaluation, checkpoint_path, saved_positions
from glassformer.training.train_config import TrainConfig


def evaluations(name, *scores):
    return [Evaluation(position, position, {name: score}) for position, score in enumerate(scores)]


def test_the_earliest_of_equal_validations_is_the_best():
    assert best_evaluation(evaluations("accuracy", 1.0, 3.0, 3.0), "").position == 1
    assert best_evaluation(evaluations("loss", 3.0, 1.0, 1.0), "loss").position == 1
    assert best_evaluation([], "") is None


def test_nan_is_worse_than_every_number():
    assert ranking_score(Evaluation(0, 0, {"loss": math.nan}), "") == -math.inf


def test_an_unknown_metric_is_named():
    with pytest.raises(ValueError, match=r"metric='blue' is not a validation score: .*bleu"):
        ranking_score(Evaluation(0, 0, {"bleu": 1.0}), "blue")


def test_the_newest_the_best_and_the_last_regular_checkpoints_are_kept(tmp_path):
    for position in (10, 20, 25, 30, 40, 43):
        checkpoint_path(tmp_path, position).mkdir()
    discard_old(tmp_path, Evaluation(20, 20, {"loss": 1.0}), TrainConfig(save_every=10, keep_last=2))
    assert saved_positions(tmp_path) == [20, 30, 40, 43]
