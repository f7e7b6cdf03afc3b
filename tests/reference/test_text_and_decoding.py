import itertools
import os
import subprocess
import sys

import numpy as np
import pytest

from glassformer import reference
from glassformer.reference.attention import log_softmax

END = 0


def test_tokenizer_lower_cases_and_splits():
    assert reference.simple_tokenizer("Hello  Transformer\tworld") == ["hello", "transformer", "world"]


def test_vocabulary_round_trips_and_names_the_unknown():
    vocabulary = reference.Vocabulary(reference.simple_tokenizer("the cat sat on the mat"))
    ids = vocabulary.encode("the cat sat", begin=True, end=True)
    assert ids[0] == vocabulary.BEGIN
    assert ids[-1] == vocabulary.END
    assert vocabulary.decode([*ids, 7, 8]) == "the cat sat"
    assert vocabulary.encode("the dog") == [vocabulary.ids["the"], vocabulary.UNKNOWN]
    assert len(vocabulary) == 4 + 5


def test_text_never_becomes_a_special_token():
    vocabulary = reference.Vocabulary(["<s>", "</s>", "<pad>", "a"])
    assert vocabulary.encode("<s> </s> <pad> a") == [vocabulary.UNKNOWN] * 3 + [vocabulary.ids["a"]]


def random_language(seed, vocab_size=3):
    """Log-probabilities that depend on the whole prefix, drawn once for each."""
    rng = np.random.default_rng(seed)
    known = {}

    def next_log_probs(prefixes):
        rows = [known.setdefault(tuple(p), rng.standard_normal(vocab_size) * 1.5) for p in prefixes.tolist()]
        return log_softmax(np.array(rows))

    return next_log_probs


def exhaustive(next_log_probs, max_new, length_penalty, vocab_size=3):
    """Every sentence that ends with END or reaches the limit, with its score, best first."""
    found = []
    for length in range(1, max_new + 1):
        for tokens in itertools.product(range(vocab_size), repeat=length):
            ends_well = END not in tokens[:-1] and (tokens[-1] == END or length == max_new)
            if ends_well:
                prefixes = [[9, *tokens[:i]] for i in range(length)]
                total = sum(next_log_probs(np.array([p]))[0, t] for p, t in zip(prefixes, tokens, strict=True))
                found.append((total / length**length_penalty, list(tokens)))
    return sorted(found, reverse=True)


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("seed", range(5))
def test_a_beam_as_wide_as_the_tree_finds_the_best_sentence(seed, length_penalty):
    language = random_language(seed)
    best = exhaustive(language, 4, length_penalty)
    found = reference.beam_search(language, [9], END, 4, width=40, length_penalty=length_penalty)
    assert found[0].tokens == best[0][1]
    assert found[0].score == pytest.approx(best[0][0])
    # All of them, for the beam was as wide as the tree.
    assert [h.tokens for h in found] == [tokens for _, tokens in best[: len(found)]]


@pytest.mark.parametrize("seed", range(5))
def test_a_beam_of_one_is_greedy(seed):
    language = random_language(seed)
    assert (
        reference.beam_search(language, [9], END, 6, width=1, length_penalty=0.0)[0].tokens
        == reference.greedy(language, [9], END, 6).tokens
    )


@pytest.mark.parametrize("seed", range(20))
def test_early_stopping_does_not_change_the_result(seed, monkeypatch):
    language = random_language(seed)
    stopped = reference.beam_search(language, [9], END, 7, width=3, length_penalty=0.8)
    monkeypatch.setattr("glassformer.reference.decoding._is_decided", lambda *_: False)
    assert reference.beam_search(language, [9], END, 7, width=3, length_penalty=0.8) == stopped


LEARN = """
import sys
from glassformer.reference.__main__ import learn_to_reverse
share = learn_to_reverse(seconds=600)  # it ends when it can; on a busy machine that takes longer
assert "torch" not in sys.modules
assert share >= 0.97, share
"""


def test_the_numpy_model_learns_to_reverse_without_torch_on_one_core():
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, "-c", LEARN], env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
