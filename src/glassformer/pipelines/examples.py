"""Types of the examples that tasks read from files and that pipelines are scored on. Imports no torch."""

from typing import Literal, NamedTuple

from glassformer.text.sentences import split_sentences


class LabeledExample(NamedTuple):
    """A text or a pair of texts with its labels: one label, or with `multi_label` any number."""

    text: str
    labels: tuple[str, ...]
    second: str | None = None
    where: str = ""
    """File and line that the example was read from; "" if it does not come from a file."""


THEREFORE = "\n "
"""Separates evidence and answer in a target text. Because of the space, the tokenizer gives the answer's first word the
same token as in the middle of a sentence."""


class Question(NamedTuple):
    """A question about a text (`context`), its answers, and `source`, the text that the encoder reads (`as_source`)."""

    question: str
    context: str
    answers: tuple[str, ...]
    """Alternative correct answers; empty if the text does not answer the question."""
    source: str
    evidence: str = ""
    """Sentences of the context that the answer follows from, if the model learns to quote them; otherwise ""."""

    @property
    def answer(self) -> str:
        """The first of the correct answers; "" if there is none."""
        return self.answers[0] if self.answers else ""

    @property
    def target(self) -> str:
        """The text that the model learns to write: the evidence, if any, and the answer."""
        return f"{self.evidence}{THEREFORE}{self.answer}" if self.evidence else self.answer


def as_source(question: str, context: str, *, number_sentences: bool = False, last_sentences: int = 0) -> str:
    """Return the text that the encoder reads for a question: the context, and on the next line the question.

    The question comes last, so that it is next to the end of the context, which often holds the answer.
    `number_sentences` writes a number before each sentence, counted from the end. `last_sentences` keeps only that many
    sentences at the end of the context; 0 keeps all.
    """
    if number_sentences or last_sentences:
        sentences = split_sentences(context)[-last_sentences:]
        first = len(sentences)
        context = " ".join(f"{first - place} {one}" if number_sentences else one for place, one in enumerate(sentences))
    # The space gives the question's first word the same token as inside a text.
    return f"{' '.join(context.split())}\n {' '.join(question.split())}"


class Summary(NamedTuple):
    """A text to summarize (`source`), the summary that the model learns to write (`target`), and the references."""

    source: str
    target: str
    references: tuple[str, ...]
    """Reference summaries, against which a generated summary is scored."""
    sentences: tuple[str, ...]
    """The sentences of the source text."""


NoiseName = Literal["spans", "infilling"]
