"""Checks of tensors accept what fits, and name the argument, its value and what was expected otherwise."""

import pytest
import torch

from glassformer.nn.tensor_checks import (
    check_broadcasts,
    check_id_list,
    check_ids,
    check_length,
    check_shape,
    check_width,
)

IDS = torch.tensor([[0, 4]])


def test_tensors_that_fit_are_accepted():
    check_width("x", torch.zeros(2, 3, 8), 8)
    check_ids("ids", IDS, 5)
    check_ids("ids", IDS.int(), 5)
    check_ids("ids", torch.zeros(0, 3, dtype=torch.long), 5)
    check_id_list("ids", [0, 4], 5)
    check_id_list("ids", [], 5)
    check_length("ids", 10**9, None)
    check_length("ids", 8, 8)
    check_shape("x", torch.zeros(2, 3), (2, 3))
    check_broadcasts("x", torch.zeros(1, 3), (2, 3))


@pytest.mark.parametrize(
    ("check", "error", "message"),
    [
        (lambda: check_width("x", torch.zeros(2, 3, 7), 8), ValueError, r"x has shape \(2, 3, 7\): .*length, 8\)"),
        (lambda: check_width("x", torch.zeros(2, 3, 8).int(), 8), TypeError, "x has dtype torch.int32"),
        (lambda: check_ids("ids", [[1]], 5), TypeError, "ids is a list: expected a tensor"),
        (lambda: check_ids("ids", IDS[0], 5), ValueError, r"ids has shape \(2,\)"),
        (lambda: check_ids("ids", IDS.bool(), 5), TypeError, "ids has dtype torch.bool"),
        (lambda: check_ids("ids", IDS, 4), ValueError, "ids holds the id 4: expected ids from 0 to 3"),
        (lambda: check_ids("ids", IDS - 1, 4), ValueError, "ids holds the id -1"),
        (lambda: check_id_list("ids", [3, 5, 1], 5), ValueError, "ids holds the id 5: expected ids from 0 to 4"),
        (lambda: check_id_list("ids", [3, -1], 5), ValueError, "ids holds the id -1: expected ids from 0 to 4"),
        (lambda: check_length("ids", 9, 8), ValueError, "ids reaches 9 tokens: expected at most max_len=8"),
        (lambda: check_shape("x", torch.zeros(1, 3), (2, 3)), ValueError, r"x has shape \(1, 3\): expected \(2, 3\)"),
        (lambda: check_broadcasts("x", torch.zeros(3), (2, 3)), ValueError, r"broadcasts to \(2, 3\)"),
    ],
)
def test_each_error_names_the_argument_and_what_was_expected(check, error, message):
    with pytest.raises(error, match=message):
        check()
