"""`--part I/N`."""

import pytest

from glassformer.cli.flag_parser import UsageError
from glassformer.cli.part_option import read_part


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/0", "-1/2"])
def test_wrong_parts_are_refused(text):
    with pytest.raises(UsageError, match=f"--part {text}: expected I/N"):
        read_part(text)
    assert (read_part("2/8"), read_part("")) == ((2, 8), (1, 1))
