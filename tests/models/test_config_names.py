"""The groups of names are names of config fields."""

from dataclasses import fields

from glassformer.models import ModelConfig
from glassformer.models.config_names import EXPERT_FIELDS, HEAD_FIELDS, OTHER_NAMES


def test_all_names_are_fields():
    known = {field.name for field in fields(ModelConfig)}
    ours = {name for value in OTHER_NAMES.values() for name in value.split(" or ")}
    assert {*HEAD_FIELDS, *EXPERT_FIELDS} | ours <= known
    assert not OTHER_NAMES.keys() & known
