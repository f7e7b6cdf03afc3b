"""A small wheel of interface texts in place of the one that the demos download."""

import hashlib
import json
import zipfile

from glassformer.data.corpora import catalog


def use_wheel(folder, monkeypatch, texts):
    """Write a wheel with these texts, by language and key, and let the corpora read it instead of a download."""
    path = folder / catalog.INTERFACE_WHEEL
    with zipfile.ZipFile(path, "w") as archive:
        for language, own in texts.items():
            archive.writestr(f"pkg/components/lamp/translations/{language}.json", json.dumps(own))
    monkeypatch.setenv("GLASSFORMER_CACHE", str(folder))
    monkeypatch.setattr(catalog, "INTERFACE_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
