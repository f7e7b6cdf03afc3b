import math
import sys
from importlib.metadata import version

import pytest

from glassformer.metrics.bleu import score_translations, tokenized_bleu

REFERENCES = ["Ein Hund läuft durch den Schnee.", "Zwei Männer sitzen auf einer Bank."]


def test_identical_texts_score_100_and_the_signatures_say_how():
    scores = score_translations(REFERENCES, REFERENCES)
    assert scores["bleu"] == pytest.approx(100)
    assert scores["chrf"] == pytest.approx(100)
    assert "tok:13a" in scores.signatures["bleu"]
    assert "case:mixed" in scores.signatures["bleu"]
    assert "case:mixed" in scores.signatures["chrf"]


def test_bleu_is_case_sensitive_unless_lowercase():
    small = [text.lower() for text in REFERENCES]
    assert score_translations(small, REFERENCES)["bleu"] < 90
    scores = score_translations(small, REFERENCES, lowercase=True)
    assert scores["bleu"] == pytest.approx(100)
    assert "case:lc" in scores.signatures["bleu"]


def test_tokenized_bleu_equals_a_hand_computed_value():
    # Six tokens, the last one wrong: 5/6 words, 4/5 pairs, 3/4 triples and 2/3 fours, whose product is 1/3.
    score = tokenized_bleu(["ein Hund läuft im Schnee!"], ["Ein Hund läuft im Schnee."], "de")
    assert score.bleu == pytest.approx(100 * (1 / 3) ** (1 / 4))
    # Five of six tokens, all of them right: what is left is the penalty for being short.
    score = tokenized_bleu(["Ein Hund läuft im Schnee"], ["Ein Hund läuft im Schnee."], "de")
    assert score.bleu == pytest.approx(100 * math.exp(1 - 6 / 5))


def test_tokenized_bleu_is_not_smoothed():
    assert tokenized_bleu(["Ein Hund läuft langsam."], ["Ein Hund läuft schnell."], "de").bleu == 0


@pytest.mark.parametrize(
    ("text", "tokens", "language"),
    [
        ("Ein blau-weißes T-Shirt, z.B. mit Aufdruck.", "ein blau-weißes t-shirt , z.b. mit aufdruck .", "de"),
        ("Ein Boot namens „El Corazon“ fährt.", 'ein boot namens " el corazon " fährt .', "de"),
        ("A man's hat isn't red.", "a man 's hat isn 't red .", "en"),
        # Moses keeps "Mr." whole, and splits "mr.".
        ("The sign says Mr.", "the sign says mr .", "en"),
    ],
)
def test_texts_are_tokenized_as_in_multi30ks_files(text, tokens, language):
    """Without its last dot a text lacks one token, and the penalty for that tells how many there are."""
    count = len(tokens.split())
    assert tokenized_bleu([text[:-1]], [text], language).bleu == pytest.approx(100 * math.exp(1 - count / (count - 1)))


def test_punctuation_is_normal_before_it_is_compared():
    plain, printed = 'Ein Boot namens "El Corazon" fährt…', "Ein Boot namens „El Corazon“ fährt..."
    assert tokenized_bleu([plain], [printed], "de").bleu == pytest.approx(100)


def test_the_signature_says_what_was_done_to_the_texts():
    signature = tokenized_bleu(REFERENCES, REFERENCES, "de").signature
    assert "|case:lc|eff:no|tok:none|smooth:none|version:" in signature
    assert f"|moses:lc+norm+tok|lang:de|sacremoses:{version('sacremoses')}" in signature


@pytest.mark.parametrize("score", [score_translations, lambda a, b: tokenized_bleu(a, b, "de")])
def test_texts_that_cannot_be_scored_are_named(score):
    with pytest.raises(ValueError, match="2 translations and 1 references: expected as many"):
        score(["a", "b"], ["a"])
    with pytest.raises(ValueError, match="no translations: expected at least one"):
        score([], [])


def test_a_language_name_instead_of_a_code_is_refused():
    with pytest.raises(ValueError, match="language='German': expected a code such as \"de\""):
        tokenized_bleu(REFERENCES, REFERENCES, "German")


@pytest.mark.parametrize("package", ["sacrebleu.metrics.bleu", "sacremoses"])
def test_a_missing_package_is_named_with_the_way_to_get_it(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=r"pip install sacrebleu sacremoses"):
        tokenized_bleu(REFERENCES, REFERENCES, "de")
