"""The rules of encoder tasks name options of their tasks, and cheaper values that are valid."""

import pytest

from glassformer.base.dataclass_flags import options_of
from glassformer.tasks.configs.corpus_size import CorpusSize
from glassformer.tasks.configs.task_options import AUTOMATIC, make_config
from glassformer.tasks.task_registry import TASKS, config_named

WITH_RULE = [task for task in TASKS if config_named(task).ENCODER_RULE is not None]


def test_some_tasks_have_a_rule_and_all_of_them_train_encoders():
    assert WITH_RULE
    assert {config_named(task)().model.kind for task in WITH_RULE} == {"encoder"}


@pytest.mark.parametrize("task", WITH_RULE)
def test_a_rule_sets_options_of_its_task_whose_default_is_chosen(task):
    kind = config_named(task)
    rule, paths = kind.ENCODER_RULE, {option.path for option in options_of(kind).values()}
    for values in (rule.others, *rule.cheaper):
        assert values.keys() <= paths & AUTOMATIC
        assert make_config(kind, values)


@pytest.mark.parametrize("task", WITH_RULE)
def test_batches_and_vocabularies_do_not_shrink_with_more_text(task):
    rule = config_named(task).ENCODER_RULE
    sizes = [CorpusSize(10**power, 50 * 10**power) for power in range(1, 8)]
    for grow in (rule.batch_tokens, rule.vocabulary):
        if grow is not None:
            found = [grow(size) for size in sizes]
            assert found == sorted(found)
            assert found[0] > 0
