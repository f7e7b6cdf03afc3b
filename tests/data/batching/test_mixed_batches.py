"""Batches of several corpora, mixed by weights."""

from collections import Counter

import pytest

from glassformer.data.batching.mixed_batches import BLOCK, MixedBatches, share_out


class Numbered:
    def __init__(self, name, size):
        self.name, self.size = name, size

    def __len__(self):
        return self.size

    def __getitem__(self, number):
        return self.name, number

    def n_rows(self, number):
        return self.size + number

    def padding_share(self):
        return self.size / 100


@pytest.fixture
def mixed():
    return MixedBatches({"news": Numbered("news", 5), "web": Numbered("web", 20)}, {"news": 7, "web": 3}, seed=1)


def test_each_corpus_has_its_share_and_its_own_numbers(mixed):
    found = [mixed[number] for number in range(2 * BLOCK)]
    assert Counter(name for name, _ in found) == {"news": 1400, "web": 600}
    for name, count in (("news", 1400), ("web", 600)):
        assert [number for one, number in found if one == name] == list(range(count))
    assert (len(mixed), mixed.epoch_of(30)) == (25, 1)
    assert mixed.padding_share() == pytest.approx(0.7 * 0.05 + 0.3 * 0.2)
    name, number = found[11]
    assert mixed.n_rows(11) == (5 if name == "news" else 20) + number


def test_a_batch_is_a_function_of_seed_and_number(mixed):
    found = {number: mixed[number] for number in (5000, 3, 999, 1000)}
    again = MixedBatches({"news": Numbered("news", 5), "web": Numbered("web", 20)}, {"news": 7, "web": 3}, seed=1)
    assert {number: again[number] for number in (3, 1000, 999, 5000)} == found


def test_weights_become_whole_numbers():
    assert share_out([1, 1, 1], 10) in ([4, 3, 3], [3, 4, 3], [3, 3, 4])
    assert share_out([1e-9, 1], 10) == [1, 9]
    assert sum(share_out([0.123, 0.456, 5.0], BLOCK)) == BLOCK


def test_each_corpus_needs_a_weight():
    with pytest.raises(ValueError, match="weights for news: expected one for each of news, web"):
        MixedBatches({"news": Numbered("news", 5), "web": Numbered("web", 20)}, {"news": 1.0}, seed=1)
