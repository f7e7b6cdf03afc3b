"""Types of labeled examples, which tasks read and pipelines are scored on. Imports no torch."""

from typing import Literal, NamedTuple

from glassformer.text.sentences import split_sentences


class LabeledExample(NamedTuple):
    """A text or a pair of texts with its labels: one label, or with `multi_label` any number."""

    text: str
    labels: tuple[str, ...]
    second: str | None = None
    where: str = ""
    """File and line that it was read from."""


THEREFORE = "\n "
"""Separates evidence and answer. The space gives the answer's first word the same token as inside a text."""


class Question(NamedTuple):
    """A question about a text, its answers, and the source text that the model reads."""

    question: str
    context: str
    answers: tuple[str, ...]
    """Alternative correct answers; empty if the text does not answer the question."""
    source: str
    evidence: str = ""
    """Sentences that the answer follows from, if the model learns to quote them."""

    @property
    def answer(self) -> str:
        """The first answer; empty if there is none."""
        return self.answers[0] if self.answers else ""

    @property
    def target(self) -> str:
        """The text that the model learns to write: the evidence, if any, and the answer."""
        return f"{self.evidence}{THEREFORE}{self.answer}" if self.evidence else self.answer


def as_source(question: str, context: str, *, number_sentences: bool = False, last_sentences: int = 0) -> str:
    """Return the source text: the context, and on the next line the question.

    The question comes last, so that the end of the context, which often holds the answer, is next to it.
    """
    if number_sentences or last_sentences:
        sentences = split_sentences(context)[-last_sentences:]
        first = len(sentences)
        context = " ".join(f"{first - place} {one}" if number_sentences else one for place, one in enumerate(sentences))
    # The space gives the question's first word the same token as inside a text.
    return f"{' '.join(context.split())}\n {' '.join(question.split())}"


class Summary(NamedTuple):
    """A text, the target that the model learns to write, and its reference summaries."""

    source: str
    target: str
    references: tuple[str, ...]
    """Alternative reference summaries."""
    sentences: tuple[str, ...]
    """The sentences of the text."""


NoiseName = Literal["spans", "infilling"]
