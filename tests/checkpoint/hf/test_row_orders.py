"""Orders of rows: each is a permutation, and computes the same attention as HF's layout."""

import pytest
import torch

from glassformer.checkpoint.hf.name_tables import NameRule
from glassformer.checkpoint.hf.row_orders import HeadGroups, RotaryPairs


@pytest.mark.parametrize(
    ("order", "n_rows"),
    [(HeadGroups(1, 3), 18), (HeadGroups(2, 4), 40), (HeadGroups(4, 2), 24), (RotaryPairs(4, 4), 8)],
)
def test_a_rule_with_an_order_is_undone_exactly(order, n_rows):
    rule = NameRule("theirs", ("ours",), order=order)
    tensor = torch.randn(n_rows, 3)
    found = rule.split(tensor, {"ours": (n_rows, 3)})
    assert sorted(order.indices(n_rows).tolist()) == list(range(n_rows))
    assert torch.equal(rule.join(found), tensor)


def test_grouped_heads_become_queries_then_keys_then_values():
    rows = torch.tensor([0, 1, 2, 3, 4, 5, 6, 7])[:, None]  # two groups of two queries, a key and a value
    rule = NameRule("theirs", ("q", "k", "v"), order=HeadGroups(2, 1))
    found = rule.split(rows, {"q": (4, 1), "k": (2, 1), "v": (2, 1)})
    assert {name: value.flatten().tolist() for name, value in found.items()} == {
        "q": [0, 1, 4, 5],
        "k": [2, 6],
        "v": [3, 7],
    }


def test_neighboring_pairs_become_halves_of_the_rotated_part():
    assert RotaryPairs(head_dim=6, width=4).indices(12).tolist() == [0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11]
