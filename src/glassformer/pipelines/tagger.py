"""Find entities, such as names, in texts with a trained encoder."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, overload

import numpy as np

from glassformer.data.readers.tagged_sentences import TaggedSentence
from glassformer.models import EncoderModel
from glassformer.pipelines.encoder_pipeline import EncoderPipeline, Reader, unknown_label
from glassformer.pipelines.pipeline import LineAnswer, LineRequest, ManyTexts, as_list, check_texts, each_text
from glassformer.text.encoded import Encoded
from glassformer.text.tag_viterbi import TagPaths
from glassformer.text.tags import Entity, entities_of, tags_of
from glassformer.text.word_split import cut_words
from glassformer.text.word_windows import Window, first_pieces, joined, windows, word_of_each

if TYPE_CHECKING:  # `glassformer run` imports no metrics
    from glassformer.metrics.scores import Scores

AT_ONCE = 256
"""Number of sentences whose best tag sequences are searched for in one batch."""


class TaggerInput(NamedTuple):
    """An input of the model, with the positions of its words. It is a whole sentence, or a window of a long one.

    `sentence` is the index of the sentence in the list that `Tagger.read_words` got.
    """

    sentence: int
    words: range
    """Indices of the words whose tags are taken from this input. A window also holds other words, as their context."""
    encoded: Encoded
    places: list[int | None]
    """Position in `encoded` of the first token of each of `words`; None for a word without tokens."""


class TextEntity(NamedTuple):
    """An entity of a text, with its label and its character span `start:end`."""

    text: str
    label: str
    start: int
    end: int


ManySentences = ManyTexts | Sequence[list[str]] | Sequence[tuple[str, ...]]
"""A list of sentences, each a string or a list of words."""


class Tagger(EncoderPipeline[TaggedSentence]):
    """An encoder that finds the entities of a text and labels them.

    The model scores the BIOES tags of each word at the word's first token, and the valid sequence of tags with the
    highest score is chosen. BIOES is used instead of IOB2 because it also marks the last word of an entity, so the
    model learns where entities end and fewer sequences are valid.
    """

    task, head = "tagging", "token_class"

    def __init__(self, model: EncoderModel, reader: Reader, *, labels: Sequence[str]):
        super().__init__(model, reader, labels=list(labels))
        self.labels = list(labels)
        self.paths = TagPaths(labels)

    @overload
    def tag(self, sentences: str, *, batch_tokens: int | None = None) -> list[Entity]: ...
    @overload
    def tag(self, sentences: ManySentences, *, batch_tokens: int | None = None) -> list[list[Entity]]: ...
    def tag(
        self, sentences: str | ManySentences, *, batch_tokens: int | None = None
    ) -> list[Entity] | list[list[Entity]]:
        """Return the entities of each sentence, with the indices of their words. `entities` returns character spans.

        A sentence is a list of words, or a string, which is split into words. One string gives the entities of one
        sentence.
        """

        def tag(several: list[str]) -> list[list[Entity]]:
            return self._tag([words_in(text) for text in several], batch_tokens)

        if isinstance(sentences, str):
            return each_text(sentences, tag)
        found = as_list(sentences, "sentences", "a string, a list of strings, or a list of lists of words")
        if any(isinstance(one, str) for one in found):
            return each_text(found, tag, "sentences")
        words = [check_texts(one, f"sentences[{place}]") for place, one in enumerate(found)]
        return self._tag(words, batch_tokens)

    def _tag(self, sentences: Sequence[Sequence[str]], batch_tokens: int | None = None) -> list[list[Entity]]:
        readings, n_cut = read_words(self.reader, sentences, self.model.config.max_len)
        self.count_truncated(n_cut, len(sentences), self.model.config.max_len)
        answers = self.answers([reading.encoded for reading in readings], batch_tokens=batch_tokens)
        # A word without tokens gets equal scores for all tags, so that its neighbors decide.
        scores = [np.zeros((len(words), len(self.paths.tags)), dtype=np.float32) for words in sentences]
        for reading, answer in zip(readings, answers, strict=True):
            found_words = [
                (word, place) for word, place in zip(reading.words, reading.places, strict=True) if place is not None
            ]
            if found_words:
                words, places = zip(*found_words, strict=True)
                scores[reading.sentence][list(words)] = answer[list(places)].log_softmax(-1).numpy()
        found: list[list[Entity]] = []
        for begin in range(0, len(scores), AT_ONCE):
            found.extend(entities_of(tags, "bioes") for tags in self.paths.best(scores[begin : begin + AT_ONCE]))
        return found

    @overload
    def entities(self, texts: str) -> list[TextEntity]: ...
    @overload
    def entities(self, texts: ManyTexts) -> list[list[TextEntity]]: ...
    def entities(self, texts: str | ManyTexts) -> list[TextEntity] | list[list[TextEntity]]:
        """Return the entities of each text, with their character spans. One string gives the entities of one text."""
        return each_text(texts, self._entities)

    def _entities(self, texts: list[str]) -> list[list[TextEntity]]:
        found = []
        for text, entities in zip(texts, self._tag([words_in(text) for text in texts]), strict=True):
            cuts = cut_words(text)
            places = [(cuts[one.begin][0], cuts[one.end - 1][1], one.label) for one in entities]
            found.append([TextEntity(text[start:end], label, start, end) for start, end, label in places])
        return found

    def answer_lines(self, lines: Sequence[str], request: LineRequest) -> list[LineAnswer]:
        """Return each line with its entities in brackets: [EU ORG] rejects [German MISC] call."""
        answers, lines = [], check_texts(lines, "lines")
        for line, entities in zip(lines, self._entities(lines), strict=True):
            record = {"text": line, "entities": [one._asdict() for one in entities]}
            answers.append(LineAnswer(in_brackets(line, [(one.start, one.end, one.label) for one in entities]), record))
        return answers

    def score(self, examples: Sequence[TaggedSentence]) -> "Scores":
        """Tag the examples and return entity F1, precision and recall, and the F1 of each label."""
        for example in examples:
            self.numbers(example)
        return compare(self.tag([example.words for example in examples]), examples)

    def numbers(self, example: TaggedSentence) -> list[int]:
        """Return the correct tag of each word, as an index in the list of all BIOES tags, `self.paths.tags`.

        Raise ValueError if the example has a label that the training data did not have.
        """
        for entity in example.entities:
            if entity.label not in self.labels:
                raise unknown_label(entity.label, self.labels, example.where)
        known_tags = {tag: number for number, tag in enumerate(self.paths.tags)}
        return [known_tags[tag] for tag in tags_of(example.entities, len(example.words), "bioes")]

    def read_words(self, sentences: Sequence[Sequence[str]]) -> list[TaggerInput]:
        """Tokenize sentences into model inputs: one for each sentence, or several if it exceeds the model's limit."""
        return read_words(self.reader, sentences, self.model.config.max_len)[0]


def read_words(reader: Reader, sentences: Sequence[Sequence[str]], limit: int | None) -> tuple[list[TaggerInput], int]:
    """Tokenize sentences into model inputs, and return the number of sentences with a word that had to be cut.

    `limit` is the most tokens that the model reads. A sentence of more is read in several inputs. A word is cut if it
    has more tokens than the model can read. No tokens of other words are lost.
    """
    found = []
    parts: list[tuple[int, Window]] = []  # of long sentences
    whole = reader.read([(joined(words), None) for words in sentences])
    for number, (words, encoded) in enumerate(zip(sentences, whole, strict=True)):
        if limit is None or len(encoded) <= limit:
            found.append(TaggerInput(number, range(len(words)), encoded, first_pieces(words, encoded)))
            continue
        costs = Counter(word_of_each(words, encoded))
        room = limit - encoded.sources.count(None)
        parts += [(number, window) for window in windows([costs[word] for word in range(len(words))], room)]
    pieces = [sentences[number][window.begin : window.end] for number, window in parts]
    read = reader.read([(joined(words), None) for words in pieces])
    cut = {number for (number, _), one in zip(parts, read, strict=True) if limit is not None and len(one) > limit}
    read = [one if limit is None or len(one) <= limit else one.cut(limit) for one in read]
    for (number, window), words, encoded in zip(parts, pieces, read, strict=True):
        places = first_pieces(words, encoded)[window.first - window.begin : window.last - window.begin]
        found.append(TaggerInput(number, range(window.first, window.last), encoded, places))
    return found, len(cut)


def compare(found: Sequence[Sequence[Entity]], examples: Sequence[TaggedSentence]) -> "Scores":
    """Score the predicted entities `found` against the true entities of the examples: F1, precision and recall."""
    from glassformer.metrics.entity_f1 import score_entities

    sizes = [len(example.words) for example in examples]
    return score_entities(
        [tags_of(entities, size, "iob2") for entities, size in zip(found, sizes, strict=True)],
        [tags_of(example.entities, size, "iob2") for example, size in zip(examples, sizes, strict=True)],
    )


def words_in(text: str) -> list[str]:
    """Split a text into words and punctuation marks."""
    return [text[begin:end] for begin, end in cut_words(text)]


def in_brackets(text: str, spans: Sequence[tuple[int, int, str]]) -> str:
    """Return the text with each (start, end, label) span in brackets, followed by its label: "[EU ORG] rejects"."""
    marked, done = "", 0
    for begin, end, label in spans:
        marked += f"{text[done:begin]}[{text[begin:end]} {label}]"
        done = end
    return marked + text[done:]
