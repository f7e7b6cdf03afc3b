"""Functions as commands: parameters become options, and the docstring becomes the help."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from glassformer.cli.flag_parser import UsageError, call_function


@pytest.fixture
def called():
    """A function with every kind of parameter, and the arguments of its calls."""
    calls = []

    def copy(
        path: Path,
        words: tuple[str, ...] = (),
        *,
        to: Literal["gguf", "onnx"],
        beam: int | None = None,
        top_p: float = 1.0,
        quiet: bool = False,
        check: bool = True,
    ) -> None:
        """Copy a model.

        Twice.

        Args:
            path: Model to copy,
                wherever it is.
            to: Format to write.
            beam: Width of the beam.
            top_p: Sum of the probabilities.
            quiet: Say nothing.
            check: Look at the copy.
        """
        calls.append((path, words, to, beam, top_p, quiet, check))

    def call(*arguments):
        call_function(copy, arguments, "copy")
        return calls.pop() if calls else None

    return call


def test_words_of_the_command_line_become_arguments(called):
    assert called("m", "--to", "gguf") == (Path("m"), (), "gguf", None, 1.0, False, True)
    told = called("--to=onnx", "m", "--beam", "4", "a", "--top_p", "0.5", "--quiet", "--no-check", "--", "--b", "-c")
    assert told == (Path("m"), ("a", "--b", "-c"), "onnx", 4, 0.5, True, False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "gguf"], "PATH is missing: glassformer copy --help shows how to use it"),
        (["m"], r"--to is missing: expected gguf\|onnx; glassformer copy --help"),
        (["m", "--to", "gguff"], r"--to gguff: expected one of gguf, onnx \(did you mean 'gguf'\?\)"),
        (["m", "--to", "gguf", "--bean", "3"], "--bean is not an option of copy: did you mean --beam?"),
        (["m", "--to", "gguf", "-beam", "3"], "-beam is not an option of copy: did you mean --beam?"),
        (["m", "--to", "gguf", "--beam", "3.5"], "--beam 3.5: expected a whole number"),
        (["m", "--to", "gguf", "--top-p", "much"], "--top-p much: expected a number"),
        (["m", "--to", "gguf", "--top-p", "nan"], "--top-p nan: expected a finite number"),
    ],
)
def test_wrong_words_are_refused(called, arguments, message):
    with pytest.raises(UsageError, match=message):
        called(*arguments)


def test_too_many_words_are_refused():
    def show(path: Path) -> None:
        """Show a model."""

    with pytest.raises(UsageError, match="'b' is not expected here: glassformer show --help shows what is"):
        call_function(show, ["a", "b"], "show")


def test_the_docstring_is_the_help(called, capsys):
    with pytest.raises(SystemExit) as ended:
        called("m", "--help")
    assert ended.value.code == 0
    told = capsys.readouterr().out
    assert told.startswith(
        "usage: glassformer copy PATH [WORDS] --to gguf|onnx [OPTIONS]\n\nCopy a model.\n\nTwice.\n\n"
    )
    assert "  PATH                    Model to copy, wherever it is.\n" in told
    assert "  --top-p X               Sum of the probabilities. (default: 1)\n" in told
    assert "  --quiet                 Say nothing.\n" in told
    assert "  --[no-]check            Look at the copy. (default: on)\n" in told


@dataclass(frozen=True)
class Search:
    """How to search."""

    beam: int | None = None
    """Width of the beam."""
    fast: bool = False
    """Take the first."""


def test_a_dataclass_is_a_group_of_options(capsys):
    calls = []

    def find(*, search: Search = Search(), seed: int = 0) -> None:  # noqa: B008
        """Find something."""
        calls.append((search, seed))

    call_function(find, ["--beam", "4", "--seed", "3"], "find")
    call_function(find, ["--fast"], "find")
    assert calls == [(Search(4), 3), (Search(fast=True), 0)]
    with pytest.raises(SystemExit):
        call_function(find, ["-h"], "find")
    assert "How to search:\n  --beam N                Width of the beam.\n" in capsys.readouterr().out


def test_a_list_that_is_given_twice_is_refused_and_the_last_of_single_values_counts():
    """Of --data a.tsv --data b.tsv, the first file would be left out in silence."""

    def read(*, data: tuple[Path, ...] = (), beam: int = 1) -> None:
        """Read files."""
        assert (data, beam) == ((Path("a"), Path("b")), 3)

    call_function(read, ["--data", "a", "b", "--beam", "2", "--beam", "3"], "read")
    for words in (["--data", "a", "--data", "b"], ["--data=a", "--beam", "3", "--data=b"]):
        with pytest.raises(UsageError, match="--data occurs twice: expected all its values after one --data"):
            call_function(read, words, "read")
