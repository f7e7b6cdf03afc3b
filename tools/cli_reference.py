"""Write the command-line reference as Markdown, from the help that `glassformer VERB --help` prints.

The help is made from the dataclasses that hold the options, so the pages list exactly the options that exist:

    python tools/cli_reference.py FOLDER     # writes FOLDER/cli/*.md
"""

import contextlib
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from glassformer import cli
from glassformer.cli.evaluate import eval_options
from glassformer.cli.evaluate_pretrained import evaluate_pretrained
from glassformer.cli.flag_parser import function_options, help_text
from glassformer.cli.tokenizer_tools import ACTIONS
from glassformer.tasks.task_registry import TASKS, data_named

INDENT = 26
"""The column of the help text where the descriptions of the options start."""


class HelpOption(NamedTuple):
    """One option as the help prints it: its flag, such as `--lr X`, and its description."""

    flag: str
    about: str


def reference_pages() -> dict[str, str]:
    """Return all pages of the reference, as file name -> Markdown. `index.md` links to every other page."""
    pages: dict[str, str] = {}
    for verb in cli.VERBS:
        if verb == "eval":
            pages["eval.md"] = eval_page()
        elif verb == "tokenizer":
            pages |= {f"tokenizer-{action}.md": help_page([verb, action]) for action in ACTIONS}
        elif verb in ("train", "demo"):
            pages |= {f"{verb}-{task}.md": help_page([verb, task]) for task in TASKS}
        else:
            pages[f"{verb}.md"] = help_page([verb])
    return {"index.md": index_page(list(pages)), **pages}


def index_page(names: list[str]) -> str:
    """Return the index page: a table of the commands, with links to the pages in `names`."""
    rows = []
    for verb, about in cli.VERBS.items():
        own = [name for name in names if re.fullmatch(rf"{verb}(-\w+)?\.md", name)]
        links = ", ".join(f"[{name.removesuffix('.md').partition('-')[2] or verb}]({name})" for name in own)
        rows.append(f"| `{verb}` | {escape(about)} | {links} |")
    head = "| command | what it does | options |\n|---|---|---|\n"
    return (
        "# Command-line reference\n\n"
        "These pages are made from the help of the program itself: `glassformer VERB --help` prints the same text.\n\n"
        f"{head}{chr(10).join(rows)}\n\n"
        "Results go to stdout, progress and messages to stderr. A command ends with status 0 when it succeeded, 1 when "
        "it failed, 2 when the command line was wrong, and 130 or 143 after a signal.\n"
    )


def help_page(words: list[str]) -> str:
    """Return the page of one command, such as `train tagging`."""
    return page(" ".join(words), printed_help([*words, "--help-all" if words[0] == "train" else "--help"]))


def eval_page() -> str:
    """Return the page of `eval`, whose options depend on the task of the model."""
    parts = [page("eval", printed_help(["eval", "--help"]))]
    groups = {f"A model for {task}": [*eval_options(task, data_named(task)()).values()] for task in TASKS}
    groups["A decoder of another library"] = [*function_options(evaluate_pretrained)[2].values()]
    for title, options in groups.items():
        sections = page("", help_text("", "", options)).partition("\n## ")[2]
        parts.append(f"## {title}\n\n### {sections.replace(f'{chr(10)}## ', f'{chr(10)}### ')}")
    return "\n".join(parts)


def printed_help(words: list[str]) -> str:
    """Run `glassformer WORDS` in this process and return what it prints."""
    before, sys.argv = sys.argv, ["glassformer", *words]
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
            cli.main()
    finally:
        sys.argv = before
    return printed.getvalue()


def page(title: str, text: str) -> str:
    """Return the Markdown page of a help text: usage, description, one table of options per section."""
    usage, *paragraphs = text.strip().split("\n\n")
    lines = [f"# glassformer {title}", f"```text\n{usage}\n```"]
    for paragraph in paragraphs:
        heading, _, body = paragraph.partition("\n")
        if heading.endswith(":") and body.startswith("  "):
            found = help_options(body)
            rows = [f"| `{option.flag}` | {escape(option.about)} |" for option in found]  # `a|b` is one cell
            lines.append(f"## {heading[:-1]}\n\n| option | what it does |\n|---|---|\n" + "\n".join(rows))
        else:
            lines.append(escape(" ".join(paragraph.split())))
    return "\n\n".join(lines) + "\n"


def help_options(body: str) -> Iterator[HelpOption]:
    """Yield the options that one section of the help lists; `body` is the section without its heading."""
    found: list[HelpOption] = []
    for line in body.splitlines():
        if re.match(r"  \S", line):
            flag, about = (line.strip(), "") if len(line.rstrip()) < INDENT else (line[:INDENT], line[INDENT:])
            if len(line) > INDENT and line[INDENT - 1] != " ":  # the help prints a long flag on a separate line
                flag, about = line, ""
            found.append(HelpOption(flag.strip(), about.strip()))
        else:
            found[-1] = HelpOption(found[-1].flag, f"{found[-1].about} {line.strip()}".strip())
    yield from found


def escape(text: str) -> str:
    """Return the text with escapes, so that Markdown shows it unchanged inside a table."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")


def main() -> None:
    """Write all pages to the subfolder `cli` of the folder that is the first argument."""
    folder = Path(sys.argv[1]) / "cli"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in reference_pages().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
