"""Convert between entities and tags per word, in the schemes IOB1, IOB2 and BIOES.

All three write O for words outside entities. IOB2 writes B-LABEL for the first word of an entity and I-LABEL for
the rest. IOB1 (Ramshaw and Marcus 1995; CoNLL-2003) writes I-LABEL for all of them, but B-LABEL for the first word of
an entity that directly follows another with the same label. BIOES writes B-, I- and E- for the first, inner and last
words of an entity, and S- for an entity of one word.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

Scheme = Literal["iob1", "iob2", "bioes"]
OUTSIDE = "O"
PREFIXES: dict[Scheme, str] = {"iob1": "IB", "iob2": "BI", "bioes": "BIES"}


class Entity(NamedTuple):
    """A labeled span of a sentence: the words from index `begin` up to, but not including, `end`."""

    begin: int
    end: int
    label: str


class BadTagError(ValueError):
    """A tag is unknown in its scheme, or not allowed at its position."""

    def __init__(self, place: int, problem: str):
        super().__init__(problem)
        self.place = place
        """Index of the tag's word in the sentence."""


def entities_of(tags: Sequence[str], scheme: Scheme) -> list[Entity]:
    """Return the entities of a tag sequence in order. Raises BadTagError for tags that the scheme does not allow.

    With "iob1" every sequence of B-, I- and O is valid: B- starts an entity, and so does I- if it does not continue
    one. conlleval reads tags this way, and gets the same entities from IOB2 tags.
    """
    found: list[Entity] = []
    begin, label = 0, ""  # label of the current entity; empty means none
    for place, tag in enumerate(tags):
        prefix, name = _parts(tag, place, scheme)
        goes_on = bool(label) and prefix in "IE" and name == label
        if scheme != "iob1" and not goes_on:
            if prefix in "IE":
                raise BadTagError(place, f"{tag!r} continues no entity: {_expected(scheme)}")
            if scheme == "bioes" and label:
                raise BadTagError(place, f"{tag!r} comes before the end of an entity: expected I-{label} or E-{label}")
        if label and not goes_on:
            found.append(Entity(begin, place, label))
        if not goes_on:
            begin, label = place, "" if prefix == "O" else name
        if prefix in "ES":
            found.append(Entity(begin, place + 1, label))
            label = ""
    if label:
        if scheme == "bioes":
            raise BadTagError(len(tags) - 1, f"{tags[-1]!r} ends the sentence inside an entity: expected E- or S-")
        found.append(Entity(begin, len(tags), label))
    return found


def tags_of(entities: Iterable[Entity], length: int, scheme: Scheme) -> list[str]:
    """Return the tags of a sentence of `length` words with these entities.

    Raises ValueError for entities that overlap, are empty, or lie outside the sentence.
    """
    tags, before = [OUTSIDE] * length, Entity(0, 0, "")
    for entity in sorted(entities):
        begin, end, label = entity
        if not before.end <= begin < end <= length:
            raise ValueError(f"{entity} overlaps {before}, is empty, or leaves the {length} words")
        for place in range(begin, end):
            first, last = place == begin, place == end - 1
            if scheme == "bioes":
                prefix = "S" if first and last else "B" if first else "E" if last else "I"
            elif scheme == "iob2":
                prefix = "B" if first else "I"
            else:
                prefix = "B" if first and (before.end, before.label) == (begin, label) else "I"
            tags[place] = f"{prefix}-{label}"
        before = entity
    return tags


def group_tags(tags: Sequence[str], known: Sequence[str]) -> list[Entity]:
    """Return the entities of a tag sequence that a model chose word by word, which may be valid in no scheme.

    B- starts an entity. I- continues one of its label, or else starts one. `known` are all tags of the model: if E- and
    S- (BIOES) or L- and U- (BILOU) are among them, these end an entity too. A tag without prefix is a label as it is:
    adjacent words with the same label are one entity.
    """
    prefixes, read = {tag[:2] for tag in known}, {"B-", "I-"}
    for last in ({"E-", "S-"}, {"L-", "U-"}):
        read |= last if prefixes >= last | {"B-"} else set()
    found: list[Entity] = []
    current: str | None = None  # label of the entity that the next word may continue
    for place, tag in enumerate(tags):
        prefix, label = (tag[0], tag[2:]) if tag[:2] in read else ("I", tag)
        if label == current and prefix in "IEL":
            found[-1] = found[-1]._replace(end=place + 1)
        elif tag != OUTSIDE:
            found.append(Entity(place, place + 1, label))
        current = None if tag == OUTSIDE or prefix in "ESLU" else label
    return found


def detect_scheme(sentences: Sequence[Sequence[str]]) -> Scheme:
    """Return the scheme of these tags: "iob1", "iob2" or "bioes". `sentences` has one list of tags per sentence.

    If several schemes fit, they give the same entities. Raises MixedTagsError if some tags fit only IOB1 and others
    only IOB2.
    """
    sorts = {tag[:2] for tags in sentences for tag in tags}
    if sorts & {"E-", "S-"}:
        return "bioes"
    as_iob1 = as_iob2 = None
    for number, tags in enumerate(sentences):
        before = OUTSIDE
        for place, tag in enumerate(tags):
            touches = tag != OUTSIDE and before != OUTSIDE and tag[2:] == before[2:]
            if tag[:2] == "I-" and not touches:
                as_iob1 = as_iob1 or (number, place)
            if tag[:2] == "B-" and not touches:
                as_iob2 = as_iob2 or (number, place)
            if as_iob1 and as_iob2:
                raise MixedTagsError(as_iob1, as_iob2)
            before = tag
    return "iob1" if as_iob1 else "iob2"


class MixedTagsError(ValueError):
    """IOB1 and IOB2 tags occur together.

    `as_iob1` is the (sentence, word) index of a tag that fits IOB1 but not IOB2, `as_iob2` that of one that fits IOB2
    but not IOB1.
    """

    def __init__(self, as_iob1: tuple[int, int], as_iob2: tuple[int, int]):
        super().__init__("some entities begin with I- (IOB1), others with B- where nothing is before them (IOB2)")
        self.as_iob1, self.as_iob2 = as_iob1, as_iob2


def _parts(tag: str, place: int, scheme: Scheme) -> tuple[str, str]:
    if tag == OUTSIDE:
        return OUTSIDE, ""
    prefix, dash, label = tag.partition("-")
    if prefix not in tuple(PREFIXES[scheme]) or not dash or not label:
        raise BadTagError(place, f"{tag!r} is no tag of {scheme.upper()}: {_expected(scheme)}")
    return prefix, label


def _expected(scheme: Scheme) -> str:
    return f"expected O, or {', '.join(f'{prefix}-' for prefix in PREFIXES[scheme])} and a label"
