"""Hooks of mkdocs that generate part of the documentation site from the code (see mkdocs.yml).

They add the command-line reference and the API reference. They turn links to files outside docs/ into plain text,
because the site does not contain those files. After the build they check that no page loads anything from the web.
"""

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "glassformer"

PACKAGES = {
    "pipelines": "Trained models in use",
    "tasks": "How each task is learned",
    "training": "Losses, optimizers, schedules, the trainer",
    "decoding": "Search, sampling, streaming",
    "runtime": "How one step of a model is computed",
    "checkpoint": "Model folders and other formats",
    "models": "The config and the three models",
    "nn": "The building blocks in torch",
    "kernels": "Fast implementations of single operations",
    "data": "Readers, corpora, batches",
    "text": "Tokenizers and chat templates",
    "metrics": "Scores",
    "inspect": "Attention and pictures",
    "reference": "The Transformer in NumPy",
    "documents": "The classes of the five documents",
}
"""The packages that the API reference lists, most used first, with what they contain."""
FROM_THE_WEB = re.compile(r'<(?:script|img|iframe)[^>]*\ssrc="(?:https?:)?//|<link[^>]*\shref="(?:https?:)?//')


def api_pages() -> dict[str, str]:
    """Return the pages of the API reference, as file name -> Markdown for mkdocstrings."""
    import glassformer

    names = "\n\n".join(f"::: glassformer.{name}" for name in glassformer.__all__)
    about = "The names that most programs need"
    pages = {"glassformer.md": f"# glassformer\n\n{about}.\n\n{names}\n"}
    rows = [f"| [`glassformer`](glassformer.md) | {about} |"]
    for package, about in PACKAGES.items():
        folder = SOURCE / package
        if not folder.is_dir():
            continue
        modules = sorted(path for path in folder.rglob("*.py") if not path.name.startswith("_"))
        names = [".".join(("glassformer", *path.relative_to(SOURCE).with_suffix("").parts)) for path in modules]
        parts = "\n\n".join(f"::: {name}" for name in names)
        pages[f"{package}.md"] = f"# glassformer.{package}\n\n{about}.\n\n{parts}\n"
        rows.append(f"| [`glassformer.{package}`]({package}.md) | {about} |")
    table = "| package | contents |\n|---|---|\n" + "\n".join(rows)
    about = "These pages are made from the docstrings. `help(glassformer)` prints the same text in Python."
    return {"index.md": f"# API reference\n\n{about}\n\n{table}\n", **pages}


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages to the site's files; mkdocs calls this hook."""
    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tools")]  # mkdocs restores the path after it has read this file
    from cli_reference import reference_pages
    from mkdocs.structure.files import File, InclusionLevel

    for folder, pages in (("cli", reference_pages()), ("api", api_pages())):
        for name, text in pages.items():
            file = File.generated(config, f"reference/{folder}/{name}", content=text)
            if name != "index.md":  # the index links to every other page
                file.inclusion = InclusionLevel.NOT_IN_NAV
            files.append(file)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Return a page's Markdown with links to files outside docs/ turned into plain text; mkdocs calls this hook."""
    depth = page.file.src_uri.count("/") + 1
    return re.sub(rf"\[([^\]]+)\]\((?:\.\./){{{depth}}}[^)]*\)", r"\1", markdown)


def on_post_build(config: Any) -> None:
    """Exit with an error if a page of the built site loads a script, style, font or picture from the web.

    mkdocs calls this hook after the build.
    """
    site = Path(config.site_dir)
    for path in [*site.rglob("*.html"), *site.rglob("*.css")]:
        text = path.read_text(encoding="utf-8")
        found = FROM_THE_WEB.search(text) or re.search(r"(?:url\(|@import )[\"']?https?://", text)
        if found:
            raise SystemExit(f"{path} loads something from the web: {found[0]}")
