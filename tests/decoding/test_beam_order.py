"""The order of hypotheses in beam search."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from glassformer.decoding.beam_order import stay_in_place


@given(
    st.integers(1, 6).flatmap(lambda k: st.lists(st.lists(st.integers(0, k - 1), min_size=k, max_size=k), min_size=1))
)
def test_stay_in_place_keeps_one_child_of_each_parent_at_its_index(parents):
    parents = torch.tensor(parents)
    order = stay_in_place(parents)
    indices = torch.arange(parents.shape[1]).expand_as(parents)
    assert torch.equal(order.sort(1).values, indices)
    found = parents.gather(1, order)
    has_children = (parents[:, None] == indices[:, :, None]).any(2)
    assert torch.equal(found == indices, has_children)
