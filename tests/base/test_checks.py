"""Checks of plain arguments: each error names the argument, its value and what was expected."""

import pytest

from glassformer.base.checks import check_divides, check_positive, check_probability, shortened, shown


@pytest.mark.parametrize("value", [0, -3, True, 2.0, "2", None])
def test_only_integers_of_at_least_1_are_positive(value):
    check_positive("n", 1)
    with pytest.raises(ValueError, match=f"n={value!r}: expected a whole number of at least 1"):
        check_positive("n", value)


@pytest.mark.parametrize("value", [-0.1, 1, 1.0, False, float("nan"), "0.5"])
def test_a_probability_is_at_least_0_and_below_1(value):
    check_probability("dropout", 0)
    check_probability("dropout", 0.99)
    with pytest.raises(ValueError, match=f"dropout={value!r}: expected a probability"):
        check_probability("dropout", value)


def test_a_number_that_does_not_divide_is_named_with_the_whole():
    check_divides("n_heads", 4, "d_model", 12)
    with pytest.raises(ValueError, match="n_heads=5 does not divide d_model=12: expected a divisor of 12"):
        check_divides("n_heads", 5, "d_model", 12)


def test_long_values_and_messages_are_shortened():
    assert shown("short") == "'short'"
    assert len(shown("x" * 10**6)) <= 80
    assert len(shown([[[[[[[1]]]]]]] * 10**4)) < 500
    message = "begin" + "x" * 10**4 + "end"
    short = shortened(message)
    assert len(short) <= 1000
    assert short.startswith("begin")
    assert short.endswith("end")
    assert shortened("fits") == "fits"
