"""Tasks that compare two texts: how they read pairs, and the loss of the cosines."""

from dataclasses import dataclass

import pytest
import torch

from glassformer.data.batching.labeled_batches import LabeledRow
from glassformer.data.corpora.synthetic_pairs import ScoredPair
from glassformer.pipelines.comparer import Comparer
from glassformer.tasks.pair_task import PairConfig, PairTask, ScoredPairData
from glassformer.tasks.paraphrase import Paraphrase
from glassformer.tasks.similarity import Similarity, SimilarityConfig, SimilarityData
from glassformer.text.tokenizer import END
from pipelines.tiny_pipelines import make


def test_pairs_are_read_with_the_column_that_the_task_names(tmp_path):
    (tmp_path / "a.tsv").write_text("one\ttwo\tstars\na cat\ta dog\t0.5\n", encoding="utf-8")
    data = SimilarityData(data=(tmp_path / "a.tsv",), text_column="one", second_column="two", score_column="stars")
    assert data.examples() == [ScoredPair("a cat", "a dog", 0.5)]


def test_each_pair_gives_two_rows_with_its_target():
    task = Similarity(SimilarityConfig(data=SimilarityData(lowest=0.0, highest=5.0)))
    tool = make(Comparer)  # its scores are from 0 to 5
    rows = task.rows(tool, [ScoredPair("the cat", "it is red.", 2.5), ScoredPair("saw", "saw", 5.0)])
    assert [row.answer for row in rows] == [0.5, 0.5, 1.0, 1.0]
    assert rows[2] == rows[3] == LabeledRow([*tool.reader.tokenizer.encode("saw"), END], [0] * len(rows[2].ids), 1.0)


def test_the_loss_is_the_sum_of_the_losses_of_the_cosines(monkeypatch):
    task = Similarity(SimilarityConfig())
    vectors = torch.nn.functional.normalize(torch.randn(6, 8), dim=-1)
    monkeypatch.setattr(task, "outputs", lambda model, batch: vectors)

    class Batch:
        answers = torch.tensor([0.0, 0.5, 1.0])

    cosines = torch.stack([vectors[place] @ vectors[place + 3] for place in range(3)])
    torch.testing.assert_close(task.loss(None, Batch), ((cosines - Batch.answers) ** 2).sum())


@pytest.mark.parametrize("task", [Paraphrase, Similarity])
def test_pairs_that_all_have_the_same_score_cannot_be_learned_from(task):
    with pytest.raises(ValueError, match=r"all pairs have the same label|all pairs have the score 1"):
        task(task.Config()).head_settings([ScoredPair("a", "b", 1.0)] * 3)


@dataclass(frozen=True, kw_only=True)
class StarsData(ScoredPairData):
    SCORE_FIELD = "stars_column"
    stars_column: str = "stars"

    def score_of(self, cell):
        return str(cell).count("*") / 5


@dataclass(frozen=True, kw_only=True)
class StarsConfig(PairConfig):
    data: StarsData = StarsData()


class Stars(PairTask):
    name, title, Config = "stars", "A rater", StarsConfig

    def cosine_loss(self, cosines, targets):
        return (cosines - targets).abs()

    def describe(self, splits):
        return ""


def test_a_new_task_is_the_column_of_its_scores_and_a_loss(tmp_path):
    (tmp_path / "a.tsv").write_text("text\tsecond\tstars\na\tb\t**\nc\td\t*****\n", encoding="utf-8")
    task = Stars(StarsConfig(data=StarsData(data=(tmp_path / "a.tsv",))))
    pairs = task.config.data.examples()
    assert [pair.score for pair in pairs] == [0.4, 1.0]
    assert task.head_settings(pairs) == ({"pooling": "mean"}, {})
    assert [row.answer for row in task.rows(make(Comparer), pairs)] == [0.4, 0.4, 1.0, 1.0]
    assert task.unused() >= {"r_drop", "bpe_dropout"}
    demo = Stars.demo_on_made_pairs(minutes=1.0)
    assert (demo.data.corpus, demo.train.minutes) == ("made-pairs", 1.0)
