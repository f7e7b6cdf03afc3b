"""Fine-tuning on preferences: the preferred answers become more likely, and the model stays close to the reference."""

import pytest

import glassformer
from glassformer.pipelines.decoder_evaluation import score_texts_by_perplexity
from tasks.talk_data import QUICK, train_chat, write_preferences


def train_preference(folder, start, **options):
    """Train on preferred answers, and return the scores of the last validation, on held-out pairs."""
    found = []
    glassformer.train(
        "preference",
        data=folder / "p.jsonl",
        start_from=start,
        out=folder / "m",
        on_evaluation=lambda event: found.append(event.scores),
        **{**QUICK, **options},
    )
    return found[-1]


@pytest.fixture(scope="module")
def chat(request, tmp_path_factory):
    """The folder of a model that conversations were trained on."""
    return train_chat(tmp_path_factory.mktemp("chat"), updates=200 if request.config.getoption("--full") else 20)


@pytest.mark.parametrize("kind", ["dpo", "ipo", "orpo"])
def test_preferred_answers_become_more_likely(kind, chat, tmp_path, count):
    write_preferences(tmp_path / "p.jsonl")
    options = {"updates": count(12, 60), "eval_every": count(12, 20), "lr": 2e-3, "preference_loss": kind}
    scores = train_preference(tmp_path, chat, **options)
    assert scores["accuracy"] >= 90
    assert scores["margin"] > 0
    assert glassformer.load(tmp_path / "m").can_chat


@pytest.mark.full
def test_dpo_keeps_the_perplexity_of_other_text(tmp_path):
    """Shorter answers are preferred: at least 90 % of held-out pairs, and at most 5 % more perplexity elsewhere."""
    folder = train_chat(tmp_path, updates=300)
    write_preferences(tmp_path / "p.jsonl", count=600)
    texts = ["one two three four five", "the cat sat on the mat", "eins zwei drei"]
    scores = train_preference(tmp_path, folder, updates=40, eval_every=40, lr=5e-5)
    before, after = (
        score_texts_by_perplexity(glassformer.load(path), texts)["perplexity"] for path in (folder, tmp_path / "m")
    )
    print(f"held-out accuracy {scores['accuracy']:.1f} %, perplexity {before:.1f} -> {after:.1f}")
    assert scores["accuracy"] >= 90
    assert abs(after / before - 1) <= 0.05
