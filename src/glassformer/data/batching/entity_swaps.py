"""Data augmentation for tagging: replace entities by others with the same label."""

import random
from collections.abc import Iterator, Sequence

from glassformer.data.readers.tagged_sentences import TaggedSentence


def swap_entities(sentences: Sequence[TaggedSentence], chance: float, seed: str) -> Iterator[TaggedSentence]:
    """Yield the sentences with each entity replaced, with probability `chance`, by one with the same label.

    The replacement is drawn from all entities of that label in the sentences, in proportion to their frequency. The
    result depends only on the arguments.
    """
    known: dict[str, list[tuple[str, ...]]] = {}
    for sentence in sentences:
        for entity in sentence.entities:
            known.setdefault(entity.label, []).append(sentence.words[entity.begin : entity.end])
    draw = random.Random(seed)
    for sentence in sentences:
        words: list[str] = []
        entities, done = [], 0
        for entity in sentence.entities:
            words += sentence.words[done : entity.begin]
            name = sentence.words[entity.begin : entity.end]
            if draw.random() < chance:
                name = draw.choice(known[entity.label])
            entities.append(entity._replace(begin=len(words), end=len(words) + len(name)))
            words += name
            done = entity.end
        words += sentence.words[done:]
        yield sentence._replace(words=tuple(words), entities=tuple(entities))
