"""Write the tables of measured results into README.md and docs/, from the files in benchmarks/results.

    python tools/results_page.py [--check]

A page has a pair of comments where generated text belongs:

    <!-- result: NAME -->  and  <!-- end -->     the table of benchmarks/results/NAME.json and how it was measured
    <!-- claims -->        and  <!-- end -->     one row for each claim of all files
    <!-- claims: readme --> and <!-- end -->     the rows that are marked for the README

Everything between them is replaced. --check writes nothing and exits with 1 if a page is out of date.
"""

import argparse
import json
import re
import sys
import textwrap
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
WIDTH = 120
FIELDS = {"title": str, "claims": list, "command": list, "machine": str, "date": str, "columns": list, "rows": list}
"""The fields that every result file must have, with their types. `notes`, a list of sentences, is optional."""
CLAIM_FIELDS = {"claim", "result", "target", "peer"}
MARKERS = re.compile(r"(<!-- (result|claims)(?:: ([\w-]+))? -->\n)(.*?)(<!-- end -->)", re.S)

Result = dict[str, Any]


def read_results(folder: Path = RESULTS) -> dict[str, Result]:
    """Return the contents of every result file by its name without ".json". Raise ValueError if one is malformed."""
    results = {}
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        check_result(result, path.name)
        results[path.stem] = result
    return results


def check_result(result: Result, name: str) -> None:
    """Raise ValueError if a field is missing, or if a row does not have one cell for each column.

    `name` is the file's name in the error.
    """
    for field, kind in FIELDS.items():
        if not isinstance(result.get(field), kind):
            raise ValueError(f"{name}: {field} is {result.get(field)!r}: expected a {kind.__name__}")
    for claim in result["claims"]:
        if missing := CLAIM_FIELDS - set(claim):
            raise ValueError(f"{name}: a claim has no {', '.join(sorted(missing))}")
    for row in result["rows"]:
        if len(row) != len(result["columns"]):
            raise ValueError(f"{name}: the row {row} has {len(row)} cells: expected {len(result['columns'])}")


def fill(page: str, results: dict[str, Result]) -> str:
    """Return the text of a page with everything between its pairs of comments replaced by the generated text."""

    def replace(found: re.Match[str]) -> str:
        start, kind, name, _, end = found.groups()
        if kind == "claims":
            return f"{start}{claims_table(results, only_readme=name == 'readme')}{end}"
        if name not in results:
            raise ValueError(f"a page names the result {name!r}: expected one of {', '.join(results)}")
        return f"{start}{section(results[name])}{end}"

    return MARKERS.sub(replace, page)


def claims_table(results: dict[str, Result], *, only_readme: bool = False) -> str:
    """Return a table with one row for each claim of the result files, or only for those marked for the README."""
    rows = []
    for result in results.values():
        for claim in result["claims"]:
            cells = [claim["claim"], claim["result"], claim["target"], claim["peer"]]
            if only_readme and claim.get("readme"):
                rows.append(cells)
            elif not only_readme:
                rows.append([*cells, "; ".join(result["command"]) or "not recorded", result["machine"], result["date"]])
    columns = ["claim", "result", "target", "peer"]
    return table(columns if only_readme else [*columns, "command", "machine", "date"], rows)


def section(result: Result) -> str:
    """Return the Markdown of one result: title and table; below them command, machine, date and notes."""
    commands = ", ".join(f"`{command}`" for command in result["command"])
    about = [
        f"Command: {commands or 'not recorded'}.",
        f"Machine: {result['machine']}.",
        f"Date: {result['date']}.",
        *result.get("notes", []),
    ]
    items = "".join(wrapped(line) for line in about)
    return f"**{result['title']}**\n\n{table(result['columns'], result['rows'])}\n{items}"


def wrapped(text: str) -> str:
    """Return the text as a Markdown list item, in lines of at most 120 characters that break between words only."""
    filled = textwrap.fill(
        text, WIDTH, initial_indent="- ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
    return f"{filled}\n"


def table(columns: list[str], rows: list[list[Any]]) -> str:
    """Return a Markdown table, or an HTML table if a row would be longer than 120 characters."""
    lines = [f"| {' | '.join(map(str, row))} |" for row in [columns, *rows]]
    if max(map(len, lines)) <= WIDTH:
        return "\n".join([lines[0], "|---" * len(columns) + "|", *lines[1:]]) + "\n"
    head = "".join(_cell("th", column) for column in columns)
    body = "".join(f"<tr>\n{''.join(_cell('td', cell) for cell in row)}</tr>\n" for row in rows)
    return f"<table>\n<thead><tr>\n{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>\n"


def _cell(tag: str, value: Any) -> str:
    """Return a cell of an HTML table, with the Markdown for bold text and code turned into HTML."""
    text = escape(str(value), quote=False)
    text = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", text)
    text = re.sub(r"`(.+?)`", r"<code>\1</code>", text)
    filled = textwrap.fill(f"<{tag}>{text}</{tag}>", WIDTH, break_long_words=False, break_on_hyphens=False)
    return f"{filled}\n"


def main() -> None:
    """Rewrite the pages that are out of date, or with --check only list them and exit with 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    results, stale = read_results(), []
    for path in PAGES:
        before = path.read_text(encoding="utf-8")
        after = fill(before, results)
        if after != before:
            stale.append(str(path.relative_to(ROOT)))
            if not check:
                path.write_text(after, encoding="utf-8")
    print("\n".join(stale))
    sys.exit(1 if check and stale else 0)


if __name__ == "__main__":
    main()
