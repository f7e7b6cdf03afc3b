"""Masks as the documents pass them."""

import pytest
import torch

from glassformer.documents.styles import document_mask, flat_mask

SHAPE = (2, 1, 3, 4)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
@pytest.mark.parametrize("shape", [(3, 4), (1, 1, 3, 4), (2, 1, 1, 4), (2, 1, 3, 4)])
def test_masks_become_four_dimensional_booleans(dtype, shape):
    mask = torch.rand(shape) > 0.5
    found = document_mask("mask", mask.to(dtype), SHAPE)
    assert found.dtype == torch.bool
    assert found.dim() == 4
    assert torch.equal(found.expand(SHAPE), mask.expand(SHAPE))


def test_a_mask_of_another_shape_is_refused_with_the_way_to_write_it():
    assert document_mask("src_mask", None, SHAPE) is None
    with pytest.raises(ValueError, match=r"has shape \(2, 4\): .* \(batch, key\) is written src_mask\[:, None"):
        document_mask("src_mask", torch.ones(2, 4), SHAPE)
    with pytest.raises(ValueError, match=r"src_mask has shape \(2, 1, 1, 5\): expected one that broadcasts to"):
        document_mask("src_mask", torch.ones(2, 1, 1, 5), SHAPE)


def test_a_padding_mask_is_flattened_and_others_stay():
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    assert torch.equal(flat_mask(mask[:, None, None]), mask)
    assert flat_mask(mask) is mask
    assert flat_mask(None) is None
    square = torch.ones(2, 1, 3, 3)
    assert flat_mask(square) is square
