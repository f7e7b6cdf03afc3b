"""The table of families in the documentation is that of the code."""

import importlib.util
import json
from pathlib import Path

ROOT = Path(__file__).parents[1]
SPEC = importlib.util.spec_from_file_location("family_table", ROOT / "tools" / "family_table.py")


def test_the_documented_families_are_those_of_the_code():
    made = importlib.util.module_from_spec(SPEC)
    SPEC.loader.exec_module(made)
    page = (ROOT / "docs" / "pretrained.md").read_text(encoding="utf-8")
    assert made.START + made.family_table() + made.END in page, "run python tools/family_table.py"


def test_no_family_of_the_published_comparison_differs_from_hf():
    result = json.loads((ROOT / "benchmarks" / "results" / "parity.json").read_text(encoding="utf-8"))
    for name, equal, refused, gradients, texts, failed in result["rows"]:
        assert (equal + refused, gradients, texts in ("", 200), failed) == (100, 100, True, 0), name
