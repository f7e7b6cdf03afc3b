"""Scores by name: how they are printed and compared."""

from glassformer.metrics.scores import Scores, in_digits, title_of


def test_scores_print_their_titles_digits_and_data():
    scores = Scores({"bits_per_byte": 1.23456, "rougeL": 12.345, "f1_geo_loc": 100}, about="beam 4, 511 pairs")
    assert str(scores) == "bits per byte 1.2346, ROUGE-L 12.35, F1 of geo_loc 100.00 (beam 4, 511 pairs)"
    assert str(Scores({"accuracy": 5})) == "accuracy 5.00"
    assert scores["rougeL"] == 12.345


def test_percentages_have_two_digits_and_losses_four():
    assert [in_digits(name, 2.71828) for name in ("bleu", "loss", "perplexity")] == ["2.72", "2.7183", "2.7183"]


def test_unknown_scores_use_their_own_name_and_labels_stay_unchanged():
    assert title_of("chrf") == "chrF"
    assert title_of("share_of_copies") == "share of copies"
    assert title_of("f1_PER_NAME") == "F1 of PER_NAME"


def test_the_description_of_the_data_does_not_make_scores_unequal():
    assert Scores({"bleu": 1.0}, about="one machine") == Scores({"bleu": 1.0}, about="another")
    assert Scores({"bleu": 1.0}, {"bleu": "version 1"}) != Scores({"bleu": 1.0}, {"bleu": "version 2"})
