"""Interface texts with labels, on a small wheel made here."""

import hashlib
import json
import zipfile

import pytest

from glassformer.data.corpora import catalog as corpora
from glassformer.data.corpora import interface_labels
from glassformer.data.corpora.interface_labels import open_labeled_corpus


@pytest.fixture
def _wheel(tmp_path, monkeypatch):
    path = tmp_path / corpora.INTERFACE_WHEEL
    texts = {
        ("lamp", "en"): {"a": "Light", "b": "OK", "c": "Turn it  on", "d": "50", "e": "two\nlines"},
        ("lamp", "de"): {"a": "Licht", "b": "ok", "c": "Schalte es ein"},
        ("lamp", "xx"): {"a": "Liks"},
        ("door", "en"): {"a": "Door", "b": "light ", "c": "Closed", "many": {str(n): f"door {n}" for n in range(200)}},
    }
    with zipfile.ZipFile(path, "w") as archive:
        for (component, language), strings in texts.items():
            archive.writestr(f"pkg/components/{component}/translations/{language}.json", json.dumps(strings))
    monkeypatch.setenv("GLASSFORMER_CACHE", str(tmp_path))
    monkeypatch.setattr(corpora, "INTERFACE_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())


@pytest.mark.usefixtures("_wheel")
def test_a_text_has_one_label_and_is_in_one_split(monkeypatch):
    sides = {name: list(side) for name, side in open_labeled_corpus("interface-languages").items()}
    found = [example for side in sides.values() for example in side]
    labels = {text: label for text, label in found if not text.startswith("door ")}
    assert labels == {
        "Light": "en",
        "Turn it  on": "en",
        "Door": "en",
        "Closed": "en",
        "Licht": "de",
        "Schalte es ein": "de",
    }
    assert len(found) == len({text for text, _ in found}) == 206
    assert all(sides.values())
    monkeypatch.setattr(interface_labels, "PER_LANGUAGE", 50)
    fewer = {name: list(side) for name, side in open_labeled_corpus("interface-languages").items()}
    assert sum(label == "en" for side in fewer.values() for _, label in side) == 50
    assert all({*fewer[name]} <= {*sides[name]} for name in sides)


@pytest.mark.usefixtures("_wheel")
def test_component_labels_use_unambiguous_english_texts():
    found = {text: label for side in open_labeled_corpus("interface-components").values() for text, label in side}
    assert found["OK"] == found["Turn it  on"] == "lamp"
    assert found["Door"] == found["door 7"] == "door"
    assert "Light" not in found  # both have it
    assert "Licht" not in found
    with pytest.raises(ValueError, match="unknown corpus 'wmt': expected one of interface-languages"):
        open_labeled_corpus("wmt")
