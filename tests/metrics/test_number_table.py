"""Small tables of numbers."""

from glassformer.metrics.number_table import Table

TABLE = Table("counts and a rate", ["n", "rate of all"], {"ant": [1234, 0.5], "a longer name": [7, None]})


def test_a_table_prints_aligned_columns():
    assert str(TABLE).splitlines() == [
        "                   n  rate of all",
        "ant            1,234         0.50",
        "a longer name      7            -",
    ]
    assert str(Table("empty", ["n"], {})) == "  n"


def test_a_table_is_also_plain_lists():
    assert TABLE.to_dict() == {
        "columns": ["n", "rate of all"],
        "rows": {"ant": [1234, 0.5], "a longer name": [7, None]},
    }
