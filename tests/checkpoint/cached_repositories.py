"""Lay out a folder as Hugging Face's download cache does: snapshots of links into `blobs`."""

import hashlib
from pathlib import Path

COMMIT = "5c" * 20


def put_in_cache(folder: Path, cache: Path, name: str) -> Path:
    """Copy the files of `folder` into the cache as the repository `name`, and return the folder of its snapshot."""
    repository = cache / f"models--{name.replace('/', '--')}"
    snapshot = repository / "snapshots" / COMMIT
    for part in (repository / "blobs", repository / "refs", snapshot):
        part.mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT, encoding="utf-8")
    for number, file in enumerate(sorted(file for file in folder.iterdir() if file.is_file())):
        contents = file.read_bytes()
        # Large files are named by their SHA-256, and small ones by git's SHA-1.
        digest = hashlib.sha256(contents).hexdigest()[: 64 if number % 2 else 40]
        (repository / "blobs" / digest).write_bytes(contents)
        (snapshot / file.name).symlink_to(f"../../blobs/{digest}")
    return snapshot
