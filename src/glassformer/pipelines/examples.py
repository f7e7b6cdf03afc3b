"""TODO."""

from typing import Literal, NamedTuple

from glassformer.text.sentences import split_sentences


class LabeledText(NamedTuple):
    """A text, or two, and its labels: one, or with `multi_label` any number."""

    text: str
    labels: tuple[str, ...]
    second: str | None = None
    where: str = ""
    """File and line it was read from."""


THEREFORE = "\n "
"""Between the evidence and the answer. The space makes the answer's first word the same token as elsewhere."""


class Question(NamedTuple):
    """A question about a text, its answers, and what the model reads of them."""

    question: str
    context: str
    answers: tuple[str, ...]
    """Any of them is right; none where the text does not answer it."""
    source: str
    evidence: str = ""
    """What the answer follows from, where that is to be learned too."""

    @property
    def answer(self) -> str:
        """The first answer, or nothing."""
        return self.answers[0] if self.answers else ""

    @property
    def target(self) -> str:
        """What is learned: the answer, and before it the evidence, if any."""
        return f"{self.evidence}{THEREFORE}{self.answer}" if self.evidence else self.answer


def as_source(question: str, context: str, *, number_sentences: bool = False, last_sentences: int = 0) -> str:
    """What the model reads: the context, and on the next line the question.

    So what was told last is next to the question, as it so often should be.
    """
    if number_sentences or last_sentences:
        told = split_sentences(context)[-last_sentences:]
        first = len(told)
        context = " ".join(f"{first - place} {one}" if number_sentences else one for place, one in enumerate(told))
    # The space makes the question's first word the same token as elsewhere.
    return f"{' '.join(context.split())}\n {' '.join(question.split())}"


class Summary(NamedTuple):
    """A text, what is learned to write of it, and its summaries."""

    source: str
    target: str
    references: tuple[str, ...]
    """Any of them is good."""
    sentences: tuple[str, ...]
    """The text's own."""


NoiseName = Literal["spans", "infilling"]
