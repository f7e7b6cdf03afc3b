"""Settings in `task.json` are checked against the constructor of the pipeline."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pytest

from glassformer.checkpoint.safe_files import CorruptFolderError
from glassformer.pipelines.settings import check_settings


class Pipe:
    def __init__(
        self,
        model: object,
        *,
        labels: Sequence[str],
        size: int = 1,
        share: float = 0.5,
        is_on: bool = False,
        noise: Literal["spans", "infilling"] = "spans",
        name: str = "",
    ): ...


GOOD = {"labels": ["a", "b"], "size": 3, "share": 1, "is_on": True, "noise": "infilling", "name": "x"}


def test_settings_of_the_right_types_pass():
    check_settings(Pipe, GOOD, Path("task.json"))
    check_settings(Pipe, {"labels": []}, Path("task.json"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": "ab"}, "labels='ab': expected a list of texts"),
        ({"labels": ["a", 3]}, "expected a list of texts"),
        ({"size": True}, "size=True: expected a whole number"),
        ({"size": 2**40}, "expected a whole number, at most 2147483647"),
        ({"share": float("nan")}, "share=nan: expected a number"),
        ({"is_on": 1}, "is_on=1: expected true or false"),
        ({"noise": "other"}, "noise='other': expected one of spans, infilling"),
        ({"name": 3}, "name=3: expected a text"),
        ({"strange": 1}, "has the setting 'strange': expected labels, size"),
    ],
)
def test_a_wrong_setting_is_named_with_what_was_expected(change, message):
    with pytest.raises(CorruptFolderError, match=message):
        check_settings(Pipe, GOOD | change, Path("task.json"))


def test_a_missing_setting_is_named():
    with pytest.raises(CorruptFolderError, match=r"task.json has no 'labels': expected it, for a Pipe"):
        check_settings(Pipe, {}, Path("task.json"))


def test_further_settings_pass_where_the_constructor_takes_any():
    class Open:
        def __init__(self, model: object, **settings: object): ...

    check_settings(Open, {"anything": object()}, Path("task.json"))
