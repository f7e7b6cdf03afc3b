"""Corpora of sentence pairs that users select by name: their descriptions and licenses, and functions to open them.

`interface-texts` is read from the wheel (the Python package) of Home Assistant, which contains the strings of its user
interface in many languages.
"""

import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassformer.base.names import suggestion
from glassformer.base.write_errors import naming_write_errors
from glassformer.cache_folder import cache_folder
from glassformer.data.readers.pairs import Pair, PairReader
from glassformer.data.readers.splits import Split, split_pairs
from glassformer.data.readers.text_files import BadRecordError, read_lines

INTERFACE_WHEEL = "homeassistant-2024.3.3-py3-none-any.whl"
INTERFACE_SHA256 = "6e1ec2c07441d63fdcfb8acd2c4bbb6f68bc97330855784d3623d10c38fe3577"


@dataclass(frozen=True)
class Corpus:
    """The description of a corpus that users select by name."""

    name: str
    about: str
    licence: str
    size: str
    """How much is downloaded, and how many examples there are, in words."""
    is_local: bool
    """Whether the corpus is read from a folder that the user gives, instead of being downloaded."""


CORPORA = {
    corpus.name: corpus
    for corpus in (
        Corpus(
            name="interface-texts",
            about="Home Assistant's interface strings in some 60 languages, joined by their keys",
            licence="Apache-2.0",
            size="35 MB to fetch; 12,783 pairs for English-German",
            is_local=False,
        ),
        Corpus(
            name="multi30k",
            about="image captions, English-German, with their own validation and test2016 sets",
            licence="captions of Flickr images: research and education",
            size="29,000 pairs",
            is_local=True,
        ),
        Corpus(
            name="tatoeba",
            about="short everyday sentences, English-German, as deu-eng.tsv.gz",
            licence="CC BY 2.0",
            size="169,197 pairs",
            is_local=True,
        ),
    )
}


def open_corpus(
    name: str, *, folder: Path | None = None, source: str = "en", target: str = "de"
) -> Mapping[Split, Iterable[Pair]]:
    """Return the sentence pairs of each split ("train", "valid" and "test") of the corpus with this name.

    `folder` holds the files of a corpus that is not downloaded, such as "multi30k". `source` and `target` are language
    codes.
    """
    if name not in CORPORA:
        raise ValueError(f"unknown corpus {name!r}: {suggestion(name, CORPORA)}")
    if name == "interface-texts":
        return split_pairs(list(interface_texts(fetch_interface_wheel(), source, target)))
    if folder is None:
        raise ValueError(f"corpus {name!r} is read from a local folder: give it with --folder")
    if name == "tatoeba":
        return split_pairs(list(_tatoeba(folder, source, target)))
    names: dict[Split, str] = {"train": "train", "valid": "val", "test": "test2016"}
    return {
        split: PairReader([_plain_or_gzip(folder / f"{file}.{source}")], [_plain_or_gzip(folder / f"{file}.{target}")])
        for split, file in names.items()
    }


def fetch_interface_wheel() -> Path:
    """Return the path of Home Assistant's wheel in the cache folder.

    pip downloads it once, without dependencies. Its checksum is verified in every call.
    """
    kept = cache_folder() / INTERFACE_WHEEL
    if not kept.is_file():
        with naming_write_errors(kept.parent, advice="Set GLASSFORMER_CACHE to a folder that you may write to"):
            kept.parent.mkdir(parents=True, exist_ok=True)
        print("fetching interface-texts (35 MB, Apache-2.0) from the package index", file=sys.stderr)
        with tempfile.TemporaryDirectory(dir=kept.parent) as work:
            command = ["download", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"]
            result = subprocess.run(
                [sys.executable, "-m", "pip", *command, "--dest", work, "homeassistant==2024.3.3"],
                capture_output=True,
                text=True,
                check=False,
            )
            fetched = Path(work) / INTERFACE_WHEEL
            if not fetched.is_file():
                reason = result.stderr.strip().splitlines()[-1:] or ["no reason given"]
                raise OSError(f"pip could not fetch interface-texts: {reason[0]}")
            _check_sum(fetched)
            fetched.replace(kept)
    _check_sum(kept)
    return kept


def interface_languages(wheel: Path) -> list[str]:
    """Return the language codes of the wheel, those with the most translation files first."""
    count: dict[str, int] = {}
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            language = _language(name)
            if language is not None:
                count[language] = count.get(language, 0) + 1
    return sorted(count, key=lambda language: -count[language])


def interface_texts(wheel: Path, source: str, target: str) -> Iterator[Pair]:
    """Yield the unique pairs of interface strings with the same key in the source and target languages.

    Only pairs are included whose strings have one line, contain letters, and differ from each other.
    """
    texts = {language: _texts(wheel, language) for language in (source, target)}
    for language, found in texts.items():
        if not found:
            known = ", ".join(interface_languages(wheel)[:60])
            raise ValueError(f"interface-texts has no language {language!r}: expected one of {known}")
    seen = set()
    for key, text in texts[source].items():
        if key in texts[target]:
            pair = Pair(text.strip(), texts[target][key].strip())
            if pair not in seen and _is_useful(pair):
                seen.add(pair)
                yield pair


def interface_strings(wheel: Path, languages: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Yield language, Home Assistant component and text of each interface string in these languages.

    Only strings of one line that contain letters are included.
    """
    for language in languages:
        for key, text in _texts(wheel, language).items():
            if _is_plain(text.strip()):
                component = key.partition("/translations")[0].rpartition("/")[2]
                yield language, component, text.strip()


def _is_useful(pair: Pair) -> bool:
    return all(map(_is_plain, pair)) and pair.source != pair.target


def _is_plain(text: str) -> bool:
    """Return whether a text is one line and contains letters."""
    return any(character.isalpha() for character in text) and not any(character in text for character in "\n\r\t")


def _texts(wheel: Path, language: str) -> dict[str, str]:
    found: dict[str, str] = {}
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if _language(name) == language:
                found |= _flatten(json.loads(archive.read(name)), name.rsplit("/", 1)[0])
    return found


def _language(name: str) -> str | None:
    """Return the language code of a file in the wheel, or None if the file holds no interface strings."""
    folder, _, file = name.rpartition("/")
    stem = file.removesuffix(".json")
    return stem if folder.endswith("/translations") and file.endswith(".json") and "." not in stem else None


def _flatten(value: Any, key: str) -> dict[str, str]:
    if isinstance(value, str):
        return {key: value}
    found: dict[str, str] = {}
    if isinstance(value, dict):
        for name, inner in value.items():
            found |= _flatten(inner, f"{key}.{name}")
    return found


def _check_sum(path: Path) -> None:
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != INTERFACE_SHA256:
        raise ValueError(f"{path} has SHA-256 {digest}: expected {INTERFACE_SHA256}; remove it to fetch it again")


def _tatoeba(folder: Path, source: str, target: str) -> Iterator[Pair]:
    if {source, target} != {"en", "de"}:
        raise ValueError(f"tatoeba does not have {source} and {target}: expected en and de")
    for text, problem, where in read_lines(_plain_or_gzip(folder / "deu-eng.tsv")):
        cells = text.split("\t")
        if problem or len(cells) < 2:
            raise BadRecordError(f"{where}: {problem or 'one column: expected a sentence in English and in German'}")
        english, german = cells[:2]
        yield Pair(english, german) if source == "en" else Pair(german, english)


def _plain_or_gzip(path: Path) -> Path:
    for candidate in (path, path.with_name(path.name + ".gz")):
        if candidate.is_file():
            return candidate
    raise FileNotFoundError(f"{path} (or {path.name}.gz): no such file")
