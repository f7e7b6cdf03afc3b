"""The tables of the pages are those of the result files."""

import copy
import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SPEC = importlib.util.spec_from_file_location("results_page", ROOT / "tools" / "results_page.py")
results_page = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(results_page)
RESULTS = results_page.read_results()
SMALL = {
    "title": "Speed",
    "claims": [{"claim": "speed", "result": "2 times", "target": "3 times", "peer": "HF", "readme": True}],
    "command": ["glassformer bench decode"],
    "machine": "two cores",
    "date": "2026-01-01",
    "columns": ["engine", "tokens/s"],
    "rows": [["ours", 20], ["HF", 10]],
}


@pytest.mark.parametrize("page", results_page.PAGES, ids=lambda page: page.name)
def test_pages_are_up_to_date(page):
    text = page.read_text(encoding="utf-8")
    assert results_page.fill(text, RESULTS) == text, "run python tools/results_page.py"


def test_every_result_file_is_shown_on_a_page():
    pages = "".join(page.read_text(encoding="utf-8") for page in results_page.PAGES)
    assert sorted(re.findall(r"<!-- result: ([\w-]+) -->", pages)) == sorted(RESULTS)


def test_a_changed_file_changes_the_page():
    page = "a\n<!-- result: speed -->\nold\n<!-- end -->\nb\n<!-- claims -->\n<!-- end -->\n"
    filled = results_page.fill(page, {"speed": SMALL})
    assert "**Speed**\n\n| engine | tokens/s |\n|---|---|\n| ours | 20 |\n" in filled
    assert "- Command: `glassformer bench decode`.\n- Machine: two cores.\n- Date: 2026-01-01.\n" in filled
    assert "| speed | 2 times | 3 times | HF | glassformer bench decode | two cores | 2026-01-01 |\n" in filled
    assert "old" not in filled
    assert results_page.fill(filled, {"speed": SMALL}) == filled


def test_only_marked_claims_are_in_the_readme():
    other = copy.deepcopy(SMALL)
    other["claims"] = [{"claim": "size", "result": "1", "target": "1", "peer": "none"}]
    assert "size" not in results_page.claims_table({"a": SMALL, "b": other}, only_readme=True)


def test_a_wide_table_is_wrapped_and_escaped():
    rows = [["<b> & **bold**", "word " * 50]]
    lines = results_page.table(["a", "b"], rows).splitlines()
    assert max(map(len, lines)) <= 120
    assert "<td>&lt;b&gt; &amp; <b>bold</b></td>" in lines


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"machine": None}, "machine is None"),
        ({"rows": [["ours"]]}, "has 1 cells: expected 2"),
        ({"claims": [{"claim": "speed"}]}, "has no peer, result, target"),
    ],
)
def test_an_incomplete_file_is_refused(change, error):
    with pytest.raises(ValueError, match=error):
        results_page.check_result({**SMALL, **change}, "speed.json")


def test_an_unknown_result_is_refused():
    with pytest.raises(ValueError, match="'spede': expected one of speed"):
        results_page.fill("<!-- result: spede -->\n<!-- end -->", {"speed": SMALL})
