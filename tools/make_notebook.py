"""Turn docs/tutorial.md into docs/tutorial.ipynb, with the output of every code block.

    python tools/make_notebook.py

A test checks that the notebook is what this program writes.
"""

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
BLOCK = re.compile(r"```python\n(.*?)```", re.S)


def notebook(markdown: str) -> str:
    """Run the Python blocks of a Markdown text and return it as a notebook in JSON, with what each block prints.

    All blocks share their variables.
    """
    names: dict[str, Any] = {"__name__": "notebook"}
    cells: list[dict[str, Any]] = []
    for number, part in enumerate(BLOCK.split(markdown)):  # text and code alternate
        if not part.strip():
            continue
        lines = part.strip().splitlines(keepends=True)
        cell: dict[str, Any] = {"id": f"cell-{number}", "metadata": {}, "source": lines}
        if number % 2 == 0:
            cells.append({"cell_type": "markdown", **cell})
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(part, f"block {number // 2 + 1}", "exec"), names)
        output = printed.getvalue().splitlines(keepends=True)
        outputs = [{"name": "stdout", "output_type": "stream", "text": output}] if output else []
        cells.append({"cell_type": "code", **cell, "execution_count": number // 2 + 1, "outputs": outputs})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    content = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    text = notebook((DOCS / "tutorial.md").read_text(encoding="utf-8"))
    (DOCS / "tutorial.ipynb").write_text(text, encoding="utf-8")
