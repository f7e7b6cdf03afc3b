"""An explanation replaces a file that holds one, and no other file."""

import json
import os

import pytest

import sample_explanations as samples
from glassformer.checkpoint.output_folder import OutputExistsError
from glassformer.inspect.explanation import Explanation
from glassformer.inspect.output_files import NUMBERS, PAGE, check_explanation_file
from glassformer.inspect.page_file import page_html, write_page_file


@pytest.fixture
def explained():
    return Explanation(samples.explanation("encoder"))


def test_a_page_and_numbers_are_recognized(tmp_path, explained):
    page, numbers = tmp_path / "page.html", tmp_path / "numbers.json"
    check_explanation_file(page, PAGE)
    explained.save(page)
    numbers.write_text(explained.to_json(), encoding="utf-8")
    check_explanation_file(page, PAGE)
    check_explanation_file(numbers, NUMBERS)
    explained.save(page)
    for file, kind in ((page, NUMBERS), (numbers, PAGE)):
        with pytest.raises(OutputExistsError, match=r"exists and is not .*Choose another name"):
            check_explanation_file(file, kind)


def test_numbers_of_a_model_with_a_strange_name_are_recognized(tmp_path, explained):
    explained.data["model"]["name"] = 'a "quoted" \\ name \n'
    (tmp_path / "numbers.json").write_text(explained.to_json(), encoding="utf-8")
    check_explanation_file(tmp_path / "numbers.json", NUMBERS)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "it is good\tpositive\n",
        "<!doctype html>\n<html>\n",
        json.dumps({"version": 1}),
        '{"version":"1.0","model":{}}',
    ],
)
def test_another_file_is_replaced_only_if_asked(tmp_path, explained, text):
    file = tmp_path / "reviews.tsv"
    file.write_text(text, encoding="utf-8")
    for kind in (PAGE, NUMBERS):
        with pytest.raises(OutputExistsError, match=r"reviews\.tsv exists and is not"):
            check_explanation_file(file, kind)
    with pytest.raises(OutputExistsError, match="exists and is not a page of glassformer explain"):
        explained.save(file)
    assert file.read_text(encoding="utf-8") == text
    explained.save(file, overwrite=True)
    assert file.read_text(encoding="utf-8") == page_html(explained.data)


def test_a_page_that_is_far_inside_a_file_is_not_recognized(tmp_path, explained):
    file = tmp_path / "notes.html"
    file.write_text(f"{'x' * 5000}{page_html(explained.data)}", encoding="utf-8")
    with pytest.raises(OutputExistsError):
        check_explanation_file(file, PAGE)


@pytest.mark.parametrize("overwrite", [False, True])
def test_links_folders_and_pipes_are_never_replaced(tmp_path, explained, overwrite):
    write_page_file(tmp_path / "page.html", explained.data)
    (tmp_path / "link").symlink_to(tmp_path / "page.html")
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "dangling", "folder", "pipe"):
        with pytest.raises(OutputExistsError, match=f"{name} exists and is a link, a folder or a device"):
            explained.save(tmp_path / name, overwrite=overwrite)


@pytest.mark.parametrize("where", [".", "part"])
def test_nothing_is_written_into_a_model_folder(tmp_path, explained, where):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_text("{}", encoding="utf-8")
    (tmp_path / "part").mkdir()
    for overwrite in (False, True):
        with pytest.raises(OutputExistsError, match=f"is inside the model folder {tmp_path}: expected a file outside"):
            explained.save(tmp_path / where / "page.html", overwrite=overwrite)
    assert not list(tmp_path.rglob("page.html"))


@pytest.mark.parametrize("name", ["manifest.json", "config.json"])
def test_other_folders_may_have_files_of_these_names(tmp_path, explained, name):
    (tmp_path / name).write_text("{}", encoding="utf-8")
    explained.save(tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size
