"""Flags made from dataclasses: names, defaults, docstrings and headings of the fields."""

from dataclasses import dataclass, field

import pytest

from glassformer.base.dataclass_flags import field_docs, field_options, options_of


@dataclass
class Training:
    """A part of a config."""

    # Speed
    max_tokens: int = 100
    """Tokens
    per batch."""
    lr: float = 0.1


@dataclass
class Recipe:
    """A config with a part and a field of its own."""

    train: Training = field(default_factory=Training)
    start_from: str = ""
    """A trained model."""


def test_every_field_of_every_part_becomes_a_flag():
    options = options_of(Recipe)
    assert {name: (one.flag, one.path, one.hint, one.default) for name, one in options.items()} == {
        "max_tokens": ("--max-tokens", "train.max_tokens", int, 100),
        "lr": ("--lr", "train.lr", float, 0.1),
        "from": ("--from", "start_from", str, ""),
    }


def test_a_flag_is_described_by_the_docstring_of_its_field_under_the_comment_above():
    assert field_docs(Training) == {"max_tokens": ("Tokens per batch.", "Speed"), "lr": ("", "Speed")}
    max_tokens, lr = field_options(Training, Training(lr=3.0), "train")
    assert (max_tokens.about, max_tokens.section) == ("Tokens per batch.", "Training: speed")
    assert lr.default == 3.0


def test_two_fields_may_not_become_the_same_flag():
    @dataclass
    class Twice:
        train: Training = field(default_factory=Training)
        lr: float = 0.2

    with pytest.raises(AssertionError, match="two options are called lr"):
        options_of(Twice)
