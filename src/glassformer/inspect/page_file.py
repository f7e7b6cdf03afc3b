"""Put the explorer (`inspect/page/`) and one explanation into a single HTML file that opens from disk.

A browser does not load ES modules from `file://`, so the modules are joined into one script: each becomes a function
that returns its exports. All text of the explanation is untrusted: it is stored as compressed JSON in base64, and the
modules insert it as text.
"""

import base64
import json
import re
import zlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from glassformer.base.write_errors import naming_write_errors
from glassformer.checkpoint.safe_files import write_text
from glassformer.inspect.code_excerpts import code_excerpts

ENTRY = "main.js"
IMPORT = re.compile(r'^import \{([\w\s,]+)\} from "\./([\w.]+)";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async )?(?:function\*?|const|class) (\w+))", re.MULTILINE)
LEFT_OVER = re.compile(r"^\s*(?:import\b(?!\()|export\b).*", re.MULTILINE)
PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")
EXPLANATION = re.compile(r'<script type="text/plain" id="explanation">([A-Za-z0-9+/=]*)</script>')
MARKUP = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"}


def page_html(explanation: Mapping[str, Any] | None) -> str:
    """Return the page: with an explanation to show, or with None the page that asks its server for one.

    Raises ValueError if the explanation holds a number that is not finite, which JSON cannot store.
    """
    values = {
        "style": _page_text("style.css"),
        "script": _script(),
        "excerpts": embedded_json(code_excerpts()),
        "explanation": compressed_json(explanation),
    }
    return PLACEHOLDER.sub(lambda found: values[found[1]], _page_text("index.html"))


def write_page_file(path: Path, explanation: Mapping[str, Any]) -> None:
    """Write the page that shows `explanation` as one file, which needs no other file and no network."""
    text = page_html(explanation)
    with naming_write_errors(path):
        write_text(path, text)


def compressed_json(value: object) -> str:
    """Return `value` as JSON that is compressed by zlib and written in base64; an empty text for None.

    Packed arrays keep their size, because they hardly compress; everything else becomes much smaller.
    """
    if value is None:
        return ""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode("ascii"), 9)).decode("ascii")


def embedded_explanation(page: str) -> Any:
    """Return the explanation that a page holds; None if it asks a server for one."""
    found = EXPLANATION.search(page)
    if found is None:
        raise ValueError("the text is no page of the explorer: it holds no explanation")
    return json.loads(zlib.decompress(base64.b64decode(found[1]))) if found[1] else None


def embedded_json(value: object) -> str:
    """Return `value` as ASCII JSON that cannot end the `<script>` element around it."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")).translate(MARKUP)


def bundle(modules: Mapping[str, str], entry: str) -> str:
    """Join ES modules into one script. `modules` maps file names to texts; `entry` is the module that runs last.

    Understands the forms that the page uses: `import { a, b } from "./x.js";` on its own lines, and `export` before a
    `function`, `const` or `class`. Raises ValueError for any other form, an unknown module, a name that is imported but
    not exported, and modules that import each other in a circle.
    """
    parts: dict[str, str] = {}
    exports: dict[str, list[str]] = {}

    def add(name: str, importers: tuple[str, ...]) -> None:
        if name in importers:
            raise ValueError(f"modules import each other in a circle: {' -> '.join([*importers, name])}")
        if name in parts:
            return
        if name not in modules:
            raise ValueError(f"{importers[-1] if importers else 'the page'} imports {name}: there is no such module")
        text = modules[name]
        for names, other in IMPORT.findall(text):
            add(other, (*importers, name))
            missing = [one for one in _names(names) if one not in exports[other]]
            if missing:
                raise ValueError(f"{name} imports {', '.join(missing)}, which {other} does not export")
        body = IMPORT.sub(lambda found: f"const {{ {', '.join(_names(found[1]))} }} = {_variable(found[2])};\n", text)
        exports[name] = EXPORT.findall(body)
        body = EXPORT.sub("", body)
        if left := LEFT_OVER.search(body):
            raise ValueError(f"{name}: cannot bundle {left[0].strip()!r}")
        result = f"return {{ {', '.join(exports[name])} }};"
        parts[name] = f"const {_variable(name)} = (() => {{ // {name}\n{body}{result}\n}})();\n"

    add(entry, ())
    return "".join(parts.values())


def _names(text: str) -> list[str]:
    return [name for name in re.split(r"[\s,]+", text) if name]


def _variable(name: str) -> str:
    return "module_" + name.removesuffix(".js")


@cache
def _script() -> str:
    folder = files("glassformer.inspect") / "page"
    modules = {file.name: file.read_text(encoding="utf-8") for file in folder.iterdir() if file.name.endswith(".js")}
    return bundle(modules, ENTRY).replace("</", "<\\/")


@cache
def _page_text(name: str) -> str:
    return (files("glassformer.inspect") / "page" / name).read_text(encoding="utf-8")
