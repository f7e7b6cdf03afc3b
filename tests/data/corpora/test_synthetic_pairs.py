"""Synthetic sentence pairs: their score is the share of facts that both state."""

from glassformer.data.corpora import synthetic_pairs
from glassformer.data.corpora.synthetic_pairs import DOES, HOW, ORDERS, SLOTS, WHERE, WHO, generate_pairs

SIDES = generate_pairs(2000, seed=3)


def facts(text):
    """Return who does what to whom, how and where, each as the number of its group of synonyms."""
    found = []
    for groups in (WHO, DOES, HOW, WHERE):
        places = {
            f" {text} ".find(f" {words} "): number
            for number, group in enumerate(groups)
            for words in group
            if f" {words} " in f" {text} "
        }
        found += [places[place] for place in sorted(places)]
    return found


def test_the_score_is_the_share_of_equal_facts():
    checked = 0
    for pair in SIDES["train"]:
        first, second = facts(pair.text), facts(pair.second)
        if len(first) == len(second) == 5:  # fewer facts if the subject and the object are the same word
            assert pair.score == sum(a == b for a, b in zip(first, second, strict=True)) / 5
            checked += 1
    assert checked > 500
    assert {pair.score for pair in SIDES["train"]} == {0.0, 0.2, 0.4, 0.6, 0.8, 1.0}


def test_no_training_pair_has_a_text_of_a_held_out_pair(monkeypatch):
    # With 243 possible sentences, the pairs repeat many of them.
    monkeypatch.setattr(synthetic_pairs, "SLOTS", tuple(tuple(words[:1] for words in slot[:3]) for slot in SLOTS))
    monkeypatch.setattr(synthetic_pairs, "ORDERS", ORDERS[:1])
    sides = generate_pairs(300)
    held_out = {text for side in ("valid", "test") for pair in sides[side] for text in (pair.text, pair.second)}
    assert held_out
    assert sides["train"]
    assert not any(text in held_out for pair in sides["train"] for text in (pair.text, pair.second))


def test_the_same_seed_gives_the_same_pairs():
    assert generate_pairs(2000, seed=3) == SIDES
    assert generate_pairs(2000, seed=4) != SIDES
