"""An extension of griffe that shows the examples of docstrings (`>>> ...`) as code in the API reference.

mkdocs.yml loads it.
"""

from typing import Any

import griffe


class FenceExamples(griffe.Extension):
    """The griffe extension: puts a Markdown code fence around each example of every docstring."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Fence the examples in the docstring of a module, class, function or attribute. griffe calls it for each."""
        if obj.docstring is not None:
            obj.docstring.value = fence_examples(obj.docstring.value)


def fence_examples(text: str) -> str:
    """Return the text with a fence around each run of lines that starts with `>>>` and ends before an empty line."""
    lines: list[str] = []
    is_inside = False
    for line in [*text.splitlines(), ""]:
        if not is_inside and line.startswith(">>>"):
            lines.append("```pycon")
            is_inside = True
        elif is_inside and not line.strip():
            lines.append("```")
            is_inside = False
        lines.append(line)
    return "\n".join(lines[:-1])
