"""Find entities in texts with a pretrained encoder that classifies tokens."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, overload

from typing_extensions import override

from glassformer.data.readers.tagged_sentences import TaggedSentence
from glassformer.models import EncoderModel
from glassformer.pipelines.encoder_pipeline import EncoderPipeline, Reader, unknown_label
from glassformer.pipelines.pipeline import LineAnswer, LineRequest, ManyTexts, as_json_number, check_texts, each_text
from glassformer.pipelines.tagger import compare, in_brackets, read_words
from glassformer.text.encoded import Encoded
from glassformer.text.pretrained_tokenizers import PretrainedTokenizer
from glassformer.text.tags import OUTSIDE, group_tags
from glassformer.text.word_windows import windows

if TYPE_CHECKING:  # `glassformer run` imports no metrics
    from glassformer.metrics.scores import Scores


class ScoredEntity(NamedTuple):
    """An entity of a text, with its label, its character span `start:end`, and the mean probability of its words."""

    text: str
    label: str
    start: int
    end: int
    probability: float


class _Part(NamedTuple):
    """An input of the model: a whole text, or a window of a long one. It decides the tags of some words."""

    text: int
    """Index of the text."""
    encoded: Encoded
    places: list[int]
    """Position in `encoded` of the first token of each word that it decides."""


class PretrainedTagger(EncoderPipeline[TaggedSentence]):
    """A pretrained encoder that tags each token of a text (`...ForTokenClassification` of HF Transformers).

    The tag of a word is that of its first token, and words are grouped to entities, as by HF's pipeline with
    `aggregation_strategy="first"`. Texts that exceed the model's limit are read in windows.

    Args:
        tags: The names of the classes, such as "O" and "B-PER", in the model's order.
    """

    task, head = "token classification", "token_class"

    def __init__(self, model: EncoderModel, reader: Reader, *, tags: Sequence[str]):
        if len(tags) != model.config.n_labels:
            raise ValueError(f"{len(tags)} tags for a model of {model.config.n_labels} classes: expected as many")
        super().__init__(model, reader, tags=list(tags))
        self.tags = list(tags)

    @overload
    def entities(self, texts: str, *, batch_tokens: int | None = None) -> list[ScoredEntity]: ...
    @overload
    def entities(self, texts: ManyTexts, *, batch_tokens: int | None = None) -> list[list[ScoredEntity]]: ...
    def entities(
        self, texts: str | ManyTexts, *, batch_tokens: int | None = None
    ) -> list[ScoredEntity] | list[list[ScoredEntity]]:
        """Return the entities of each text, with their character spans. One string gives the entities of one text."""
        return each_text(texts, lambda several: self._entities(several, batch_tokens))

    def _entities(self, texts: list[str], batch_tokens: int | None = None) -> list[list[ScoredEntity]]:
        rows = self.reader.read([(text, None) for text in texts])
        words = [self._words(text, row) for text, row in zip(texts, rows, strict=True)]
        parts, n_cut = self._parts(rows, words)
        self.count_truncated(n_cut, len(texts), self.model.config.max_len)
        tags: list[list[str]] = [[] for _ in texts]  # one tag for each word
        scores: list[list[float]] = [[] for _ in texts]
        answers = self.answers([part.encoded for part in parts], batch_tokens=batch_tokens)
        for part, answer in zip(parts, answers, strict=True):
            best, index = answer[part.places].softmax(-1).max(-1)
            scores[part.text] += best.tolist()
            tags[part.text] += [self.tags[one] for one in index.tolist()]
        found = []
        for text, row, own, named, likely in zip(texts, rows, words, tags, scores, strict=True):
            entities = []
            for begin, end, label in group_tags(named, self.tags):
                span = text[row.spans[own[begin][0]][0] : row.spans[own[end - 1][-1]][1]]
                start = row.spans[own[begin][0]][0] + len(span) - len(span.lstrip())  # a token may hold the space
                span = span.strip()
                mean = sum(likely[begin:end]) / (end - begin)
                entities.append(ScoredEntity(span, label, start, start + len(span), mean))
            found.append(entities)
        return found

    def _words(self, text: str, row: Encoded) -> list[list[int]]:
        """Return the positions of the tokens of each word.

        A tokenizer of word pieces marks the tokens that continue a word by ##. Other tokenizers have no such mark:
        there, a token continues a word if no space is before it.
        """
        tokenizer = self.reader.tokenizer
        assert isinstance(tokenizer, PretrainedTokenizer)
        is_marked, names = tokenizer.kind == "WordPiece", tokenizer.tokens(row.ids)
        words: list[list[int]] = []
        for place, ((start, _), source) in enumerate(zip(row.spans, row.sources, strict=True)):
            if source is None:
                continue
            continues = (
                names[place].startswith("##") if is_marked else start > 0 and " " not in text[start - 1 : start + 1]
            )
            if words and continues and row.ids[place] != tokenizer.unknown:
                words[-1].append(place)
            else:
                words.append([place])
        return words

    def _parts(self, rows: Sequence[Encoded], words: Sequence[Sequence[Sequence[int]]]) -> tuple[list[_Part], int]:
        """Return the inputs of the model, and the number of texts with a word that had to be cut."""
        limit, parts, cut = self.model.config.max_len, [], set()
        for number, (row, own) in enumerate(zip(rows, words, strict=True)):
            if limit is None or len(row) <= limit:
                parts.append(_Part(number, row, [word[0] for word in own]))
                continue
            for window in windows([len(word) for word in own], limit - row.sources.count(None)):
                inner = range(own[window.begin][0], own[window.end - 1][-1] + 1)
                kept = [place for place, source in enumerate(row.sources) if source is None or place in inner]
                encoded = Encoded(*([part[place] for place in kept] for part in row))  # type: ignore[arg-type]
                places = [kept.index(word[0]) for word in own[window.first : window.last]]
                if len(encoded) > limit:
                    encoded = encoded.cut(limit)
                    cut.add(number)
                parts.append(_Part(number, encoded, places))
        return parts, len(cut)

    @override
    def answer_lines(self, lines: Sequence[str], request: LineRequest) -> list[LineAnswer]:
        """Return each line with its entities in brackets: [EU ORG] rejects [German MISC] call."""
        answers, lines = [], check_texts(lines, "lines")
        for line, entities in zip(lines, self._entities(lines), strict=True):
            shown = [one._asdict() | {"probability": as_json_number(one.probability)} for one in entities]
            text = in_brackets(line, [(one.start, one.end, one.label) for one in entities])
            answers.append(LineAnswer(text, {"text": line, "entities": shown}))
        return answers

    @override
    def score(self, examples: Sequence[TaggedSentence]) -> "Scores":
        """Tag the examples and return entity F1, precision and recall, and the F1 of each label.

        The tag of a given word is that of its first token. Raises ValueError for a label that the model does not have.
        """
        labels = sorted({entity.label for entity in group_tags(self.tags, self.tags)})
        for example in examples:
            for entity in example.entities:
                if entity.label not in labels:
                    raise unknown_label(entity.label, labels, example.where)
        sentences = [example.words for example in examples]
        inputs, n_cut = read_words(self.reader, sentences, self.model.config.max_len)
        self.count_truncated(n_cut, len(sentences), self.model.config.max_len)
        tags = [[OUTSIDE] * len(words) for words in sentences]  # a word without tokens has no entity
        for one, answer in zip(inputs, self.answers([one.encoded for one in inputs]), strict=True):
            for word, place in zip(one.words, one.places, strict=True):
                if place is not None:
                    tags[one.sentence][word] = self.tags[int(answer[place].argmax())]
        return compare([group_tags(found, self.tags) for found in tags], examples)
