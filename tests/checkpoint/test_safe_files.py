"""Manifests, strict JSON and atomic writes."""

import json

import pytest

from checkpoint.cached_repositories import put_in_cache
from glassformer.checkpoint import CorruptFolderError, new_folder
from glassformer.checkpoint.safe_files import (
    SealedFolder,
    confined_path,
    read_json,
    read_json_object,
    replacing,
    seal_folder,
    verify_folder,
    write_text,
)

BAD_MANIFESTS = [
    ({"sha256": None}, "no table of checksums"),
    ({}, "no table of checksums"),
    ([], "expected a JSON object"),
    ({"sha256": {"a": "0" * 63}}, "expected 64 hexadecimal digits"),
    ({"sha256": {"a": "G" * 64}}, "expected 64 hexadecimal digits"),
    ({"sha256": {"a": "0" * 64 + "\n"}}, "expected 64 hexadecimal digits"),
    ({"sha256": {"a": 7}}, "expected 64 hexadecimal digits"),
    ({"sha256": {"a/b/c": "0" * 64}}, "expected a plain file name"),
    ({"sha256": {"../b": "0" * 64}}, "expected a plain file name"),
    ({"sha256": {"a/": "0" * 64}}, "expected a plain file name"),
    ({"sha256": {"": "0" * 64}}, "expected a plain file name"),
    ({"sha256": {"..": "0" * 64}}, "expected a plain file name"),
    ({"sha256": {"a\x00": "0" * 64}}, "expected a plain file name"),
    ({"sha256": {"manifest.json": "0" * 64}}, "expected a plain file name"),
    ('{"sha256": {"a": "x", "a": "y"}}', "the key 'a' occurs twice"),
    ("[" * 100_000, "cannot be read"),
    ('{"sha256": NaN}', "it holds NaN"),
]


@pytest.mark.parametrize(("manifest", "message"), BAD_MANIFESTS, ids=range(len(BAD_MANIFESTS)))
def test_an_invalid_manifest_is_refused(tmp_path, manifest, message):
    (tmp_path / "manifest.json").write_text(
        manifest if isinstance(manifest, str) else json.dumps(manifest), encoding="utf-8"
    )
    (tmp_path / "a").touch()
    with pytest.raises(CorruptFolderError, match=message) as caught:
        verify_folder(tmp_path)
    assert str(tmp_path / "manifest.json") in str(caught.value)


def test_a_listed_file_may_not_lead_out_of_its_folder(tmp_path):
    folder = tmp_path / "folder"
    with new_folder(folder) as work:
        (work / "a").write_text("inside", encoding="utf-8")
    (tmp_path / "b").write_text("inside", encoding="utf-8")
    (folder / "a").unlink()
    (folder / "a").symlink_to(tmp_path / "b")
    with pytest.raises(CorruptFolderError, match="leads out of its folder"):
        verify_folder(folder)


@pytest.mark.parametrize("name", ["../outside.bin", "a/b", "", ".", "..", None])
def test_a_file_name_may_not_lead_out_of_the_folder(name, tmp_path):
    with pytest.raises(CorruptFolderError, match="expected a file name without a folder"):
        confined_path(tmp_path, name)


HASH = "0123456789" * 4


def test_the_links_of_the_hugging_face_cache_are_accepted(tmp_path):
    (tmp_path / "a").write_text("1", encoding="utf-8")
    snapshot = put_in_cache(tmp_path, tmp_path / "hub", "org/name")
    assert confined_path(snapshot, "a").read_text(encoding="utf-8") == "1"


@pytest.mark.parametrize(
    ("parent", "target"),
    [
        ("snapshots", "../../blobs/../secret"),
        ("snapshots", "../../blobs/name"),
        ("snapshots", f"../../others/{HASH}"),
        ("snapshots", f"../../../blobs/{HASH}"),
        ("snapshots", f"../../blobs/{HASH}/../{HASH}"),
        ("versions", f"../../blobs/{HASH}"),
    ],
)
def test_links_that_only_look_like_those_of_the_cache_are_refused(tmp_path, parent, target):
    folder = tmp_path / "models--a--b" / parent / HASH
    for place in (folder, tmp_path / "models--a--b" / "blobs", tmp_path / "blobs", tmp_path / "models--a--b/others"):
        place.mkdir(parents=True, exist_ok=True)
    for place in ("blobs", "models--a--b/blobs", "models--a--b/others"):
        (tmp_path / place / HASH).write_text("x", encoding="utf-8")
        (tmp_path / place / "name").write_text("x", encoding="utf-8")
    (tmp_path / "models--a--b" / "secret").write_text("x", encoding="utf-8")
    (folder / "a").symlink_to(target)
    with pytest.raises(CorruptFolderError, match=r"is missing|leads out of its folder"):
        confined_path(folder, "a")


def test_a_blob_that_is_a_link_itself_is_refused(tmp_path):
    (tmp_path / "a").write_text("1", encoding="utf-8")
    snapshot = put_in_cache(tmp_path, tmp_path / "hub", "org/name")
    blob = (snapshot / "a").resolve()
    blob.unlink()
    blob.symlink_to(tmp_path / "a")
    with pytest.raises(CorruptFolderError, match="leads out of its folder"):
        confined_path(snapshot, "a")


def test_a_link_that_leads_out_of_the_folder_is_refused(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "outside").touch()
    (folder / "config.json").symlink_to(tmp_path / "outside")
    with pytest.raises(CorruptFolderError, match="leads out of its folder"):
        confined_path(folder, "config.json")


@pytest.fixture
def sealed(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a").write_text("one", encoding="utf-8")
    (folder / "b").write_text("two", encoding="utf-8")
    seal_folder(folder, owner="run")
    return folder


def test_a_sealed_folder_gives_listed_files_and_refuses_the_others(sealed):
    assert json.loads((sealed / "manifest.json").read_text(encoding="utf-8"))["owner"] == "run"
    (sealed / "notes").touch()
    found = SealedFolder(sealed)
    assert found.file("a") == sealed / "a"
    assert (found.has("a"), found.has("notes"), found.has("other")) == (True, True, False)
    found.check_listed(["a", "other"])
    with pytest.raises(CorruptFolderError, match=r"notes is not in manifest\.json"):
        found.check_listed(["notes"])
    with pytest.raises(CorruptFolderError, match="other is missing"):
        found.file("other")


@pytest.mark.parametrize(("damage", "message"), [("change", "b has changed"), ("remove", "b is missing")])
def test_damage_is_found_when_the_file_is_requested(sealed, damage, message):
    if damage == "change":
        (sealed / "b").write_text("tow", encoding="utf-8")
    else:
        (sealed / "b").unlink()
    found = SealedFolder(sealed)
    found.file("a")
    with pytest.raises(CorruptFolderError, match=message):
        found.file("b")
    with pytest.raises(CorruptFolderError, match=message):
        verify_folder(sealed)


@pytest.mark.parametrize("text", ['{"a": NaN}', '{"a": 1e999}', '{"a": 1, "a": 2}'])
def test_strict_json_refuses_what_other_libraries_may_write(text, tmp_path):
    file = tmp_path / "a.json"
    file.write_text(text, encoding="utf-8")
    assert "a" in read_json(file, strict=False)
    with pytest.raises(CorruptFolderError, match=r"a\.json cannot be read: "):
        read_json(file)


def test_json_that_is_too_large_or_no_object_is_refused(tmp_path, monkeypatch):
    file = tmp_path / "a.json"
    file.write_text("[1, 2]", encoding="utf-8")
    with pytest.raises(CorruptFolderError, match=r"holds \[1, 2\]: expected a JSON object"):
        read_json_object(file)
    monkeypatch.setattr("glassformer.checkpoint.safe_files.MAX_JSON_BYTES", 5)
    with pytest.raises(CorruptFolderError, match="has 6 bytes: expected at most 5 of JSON"):
        read_json(file)


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing_beside_it(tmp_path):
    file = tmp_path / "a.txt"
    write_text(file, "old")

    def fail():
        with replacing(file) as work:
            work.write_text("half", encoding="utf-8")
            raise RuntimeError("by hand")

    with pytest.raises(RuntimeError, match="by hand"):
        fail()
    assert [(path.name, path.read_text(encoding="utf-8")) for path in tmp_path.iterdir()] == [("a.txt", "old")]
    write_text(file, "new")
    assert file.read_text(encoding="utf-8") == "new"
