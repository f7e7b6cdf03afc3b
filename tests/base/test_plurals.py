"""Numbers and nouns in messages."""

import pytest

from glassformer.base.plurals import counted


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (counted(0, "shards"), "0 shards"),
        (counted(1, "shards"), "1 shard"),
        (counted(2000, "shards"), "2,000 shards"),
        (counted(1, "classes", "class"), "1 class"),
        (counted(2, "entities", "entity"), "2 entities"),
        (counted(1, "bad records"), "1 bad record"),
    ],
)
def test_the_noun_fits_its_number(found, expected):
    assert found == expected
