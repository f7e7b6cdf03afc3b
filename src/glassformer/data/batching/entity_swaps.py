"""Data augmentation for tagging: replace entities by others of the same label."""

import random
from collections.abc import Iterator, Sequence

from glassformer.data.readers.tagged_sentences import TaggedSentence


def swap_entities(sentences: Sequence[TaggedSentence], chance: float, seed: str) -> Iterator[TaggedSentence]:
    """Replace each entity with probability `chance` by another one with the same label.

    Replacements are drawn from all entities of that label, in proportion to their frequency. The result depends on the
    seed only.
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
