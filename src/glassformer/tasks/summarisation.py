"""Summaries: from long texts to short ones that say the same."""

from collections.abc import Sequence
from typing import overload

from glassformer.decoding import GenerationConfig
from glassformer.metrics.rouge import score_summaries
from glassformer.metrics.scores import Scores
from glassformer.tasks.configs.shared import Splits
from glassformer.tasks.configs.small_models import small_encoder_decoder
from glassformer.tasks.configs.summarisation import (
    CORPUS,
    SummarisationConfig,
    Summary,
    SummaryData,
)
from glassformer.tasks.configs.summarisation import copies as copies
from glassformer.tasks.pipeline import ManyTexts
from glassformer.tasks.rewriter import Rewriter
from glassformer.tasks.rewriting import RewritingTask
from glassformer.training.train_config import TrainConfig


class Summariser(Rewriter[Summary]):
    """A trained model with its tokenizers: a text in, its summary out."""

    task = "summarisation"
    search = GenerationConfig(num_beams=4, max_new_tokens=128, no_repeat_ngram_size=3)

    @overload
    def summarise(self, texts: str, *, beam: int | None = None) -> str: ...
    @overload
    def summarise(self, texts: ManyTexts, *, beam: int | None = None) -> list[str]: ...
    def summarise(self, texts: str | ManyTexts, *, beam: int | None = None) -> str | list[str]:
        """Summarise one text, or each of a list in the same order. What is longer than the model's limit is cut."""
        return self.write(texts, beam=beam)

    def score(self, examples: Sequence[Summary]) -> Scores:
        """ROUGE-1, ROUGE-2 and ROUGE-L."""
        found = self.summarise([example.source for example in examples])
        return score_summaries(found, [example.references for example in examples])


class Summarisation(RewritingTask[Summary]):
    """Texts and their summaries to a summariser."""

    name, title, unit = "summarisation", "A summariser", "texts"
    Config, Data, Tool = SummarisationConfig, SummaryData, Summariser
    cuts_long = True

    @classmethod
    def demo(cls) -> SummarisationConfig:
        """The standard library's docstrings, by a small model."""
        return SummarisationConfig(
            data=SummaryData(corpus=CORPUS),
            model=small_encoder_decoder(
                vocab_size=2000,
                n_encoder_layers=2,
                n_decoder_layers=1,
                d_model=128,
                d_ff=256,
                max_len=64,
                init="normal",
                init_std=0.088,
                dropout=0.1,
                embedding_dropout=0.1,
            ),
            train=TrainConfig(minutes=2.2, lr=3e-3, warmup=100, schedule="linear", max_tokens=1024, eval_every=500),
        )

    def baseline(self, splits: Splits[Summary]) -> tuple[str, Scores]:
        """As above."""
        return "the first sentence", lead(list(splits.test) or list(splits.valid), 1)


def lead(examples: Sequence[Summary], count: int) -> Scores:
    """The scores of the first few sentences of each text, taken for its summary."""
    found = [" ".join(example.sentences[:count]) for example in examples]
    return score_summaries(found, [example.references for example in examples])
