import pytest
import torch

from glassformer import reference
from glassformer.decoding.beam import translate_by_beam
from glassformer.decoding.greedy import translate_greedily
from glassformer.models import preset
from oracle import random_model, twin

END = 0


@pytest.mark.parametrize("name", ["tiny-transformer-base", "tiny-t5-small", "tiny-bart-base"])
@pytest.mark.parametrize(("width", "length_penalty"), [(1, 0.0), (3, 1.0), (4, 0.6), (5, 0.0)])
def test_batched_beam_search_equals_the_oracles_one_by_one(name, width, length_penalty):
    model = random_model(preset(name, vocab_size=9))
    source = torch.randint(1, 9, (3, 5))
    mask = torch.ones(3, 5, dtype=torch.bool)
    mask[1, 3:] = False
    options = {"width": width, "length_penalty": length_penalty}
    found = translate_by_beam(model, source, mask, begin=1, end=END, max_new=7, **options)
    oracle = twin(model)
    for row, real, hypotheses in zip(source.numpy(), mask.numpy(), found, strict=True):
        expected = reference.beam_search(reference.translates(oracle, row[real]), [1], END, 7, **options)
        assert [h.tokens for h in hypotheses] == [[t for t in h.tokens if t != END] for h in expected]
        assert [h.score for h in hypotheses] == pytest.approx([h.score for h in expected], abs=1e-4)


def test_a_beam_of_one_is_greedy():
    model = random_model(preset("tiny-marian"))
    source = torch.randint(1, 40, (4, 6))
    beams = translate_by_beam(model, source, begin=1, end=END, max_new=9, width=1, length_penalty=0.0)
    assert [b[0].tokens for b in beams] == translate_greedily(model, source, begin=1, end=END, max_new=9)
