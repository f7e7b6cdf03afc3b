import json
import re
from importlib.resources import files
from pathlib import Path

import pytest

import sample_explanations as samples
from glassformer.inspect.page_file import (
    bundle,
    compressed_json,
    embedded_explanation,
    embedded_json,
    page_html,
    write_page_file,
)

FOLDER = Path(str(files("glassformer.inspect") / "page"))
MODULES = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.js")}
HOSTILE = ["</script><script>alert(1)</script>", "<!--", "{{script}}", "\u2028", "\ud800", '"', "&lt;", "$&", "\\1"]


def test_the_explanation_is_in_the_page_as_it_was_given():
    explanation = samples.explanation()
    assert embedded_explanation(page_html(explanation)) == explanation
    assert embedded_explanation(page_html(None)) is None
    with pytest.raises(ValueError, match="no page of the explorer"):
        embedded_explanation("<p>hello</p>")


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_changes_nothing_but_the_explanation(text):
    html = page_html({"text": text})
    stored = compressed_json({"text": text})
    assert embedded_explanation(html) == {"text": text}
    assert re.fullmatch(r"[A-Za-z0-9+/=]+", stored)
    assert html.replace(stored, "") == page_html(None)
    excerpts = embedded_json({"code": text})
    assert json.loads(excerpts) == {"code": text}
    assert excerpts.isascii()
    assert not set(excerpts) & set("<>&")


def test_numbers_that_json_cannot_store_are_refused():
    with pytest.raises(ValueError, match="not JSON compliant"):
        compressed_json({"loss": float("nan")})


def test_the_page_is_one_file_that_loads_nothing():
    html = page_html(samples.explanation())
    assert "default-src 'none'" in html
    assert not re.search(r"\{\{\w+\}\}", html)
    code = "".join([*MODULES.values(), (FOLDER / "style.css").read_text(encoding="utf-8")])
    assert {*re.findall(r"https?://[\w./]+", code)} <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1998/Math/MathML",
        "http://www.w3.org/1999/xhtml",
    }
    assert not re.search(r"@import|url\((?!#)", code)


@pytest.mark.parametrize("name", sorted(MODULES))
def test_modules_are_small_and_make_no_markup_from_text(name):
    text = MODULES[name]
    assert len(text.splitlines()) <= 400
    assert text.startswith("/* ")
    assert not re.search(r"(inner|outer)HTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser", text)


def test_every_module_is_in_the_page():
    html = page_html(None)
    assert not [name for name in MODULES if f"(() => {{ // {name}\n" not in html]


def test_a_page_is_written_to_a_file(tmp_path):
    write_page_file(tmp_path / "page.html", samples.explanation("encoder"))
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page_html(samples.explanation("encoder"))
    with pytest.raises(OSError, match="missing"):
        write_page_file(tmp_path / "missing" / "page.html", {})


def test_modules_become_one_script_with_a_scope_each():
    modules = {
        "main.js": 'import { double, Box } from "./a.js";\nconst x = 1;\nconsole.log(double(x), Box);\n',
        "a.js": 'import { one } from "./b.js";\nexport function double(n) { return n * one; }\nexport class Box {}\n',
        "b.js": "export const one = 1;\n",
        "unused.js": "export let broken;\n",
    }
    assert bundle(modules, "main.js") == (
        "const module_b = (() => { // b.js\nconst one = 1;\nreturn { one };\n})();\n"
        "const module_a = (() => { // a.js\nconst { one } = module_b;\nfunction double(n) { return n * one; }\n"
        "class Box {}\nreturn { double, Box };\n})();\n"
        "const module_main = (() => { // main.js\nconst { double, Box } = module_a;\nconst x = 1;\n"
        "console.log(double(x), Box);\nreturn {  };\n})();\n"
    )


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ({"m.js": 'import { a } from "./n.js";\n'}, "m.js imports n.js: there is no such module"),
        ({}, "the page imports m.js: there is no such module"),
        ({"m.js": 'import { a } from "./n.js";\n', "n.js": ""}, "m.js imports a, which n.js does not export"),
        ({"m.js": 'import { a } from "./m.js";\n'}, "in a circle: m.js -> m.js"),
        ({"m.js": 'import a from "./n.js";\n'}, "m.js: cannot bundle 'import a from"),
        ({"m.js": "export let a = 1;\n"}, "m.js: cannot bundle 'export let a = 1;'"),
        ({"m.js": "export default 1;\n"}, "m.js: cannot bundle 'export default 1;'"),
    ],
)
def test_what_cannot_be_joined_is_refused(modules, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        bundle(modules, "m.js")
