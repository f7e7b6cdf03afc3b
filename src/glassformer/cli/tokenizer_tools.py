"""`glassformer tokenizer`: train a tokenizer, use one, and measure or compare tokenizers. Imports no torch."""

import json as json_module
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from glassformer.cli.flag_parser import HELP, HELP_ALL, UsageError, call_function
from glassformer.text.tokenizer_report import AnyTokenizer, TokenizerReport, measure_tokenizer

MAX_SHOWN = 60
"""The most characters of a text that a report shows."""
MAX_FILES = 3
"""The most names of files that an error shows."""
SUBWORDS = {"bpe": "pairs", "unigram": "pieces"}
"""Name of the subwords of each kind of tokenizer whose size can be chosen."""


def tokenizer(arguments: list[str]) -> None:
    """Run `glassformer tokenizer ACTION ...`."""
    if not arguments or arguments[0] in (*HELP, HELP_ALL):
        print(_usage(), file=sys.stdout if arguments else sys.stderr)
        if not arguments:
            raise UsageError(f"tokenizer needs an action: expected one of {', '.join(ACTIONS)}")
        return
    action, *rest = arguments
    if action not in ACTIONS:
        from glassformer.base.names import suggestion

        raise UsageError(f"tokenizer {action}: no such action: {suggestion(action, ACTIONS)}")
    call_function(ACTIONS[action], rest, f"tokenizer {action}")


def train(
    data: tuple[Path, ...],
    *,
    out: Path,
    kind: Literal["bpe", "unigram", "bytes", "characters"] = "bpe",
    vocab_size: int = 8000,
    lowercase: bool = False,
    prefix_space: bool = True,
    special: tuple[str, ...] = (),
) -> None:
    """Train a tokenizer on text files and write it as a tokenizer.json.

    Args:
        data: Text files, one text per line; may be compressed.
        out: The file to write, such as my-tokenizer.json. It must not exist.
        kind: Byte-pair merges, a unigram language model, single bytes, or characters.
        vocab_size: The most tokens that it may have.
        lowercase: Lower-case all texts; decoding cannot undo it.
        prefix_space: Start every text with a space, so that a word has the same token at its start and inside it.
        special: Special tokens in addition to <pad>, <s>, </s> and <unk>. Text never becomes one of them.
    """
    from glassformer.checkpoint.safe_files import write_text
    from glassformer.progress import reporting
    from glassformer.text.tokenizer import Tokenizer, TokenizerConfig

    if out.exists():
        raise UsageError(f"--out {out} exists: expected a new file")
    config = TokenizerConfig(kind=kind, lowercase=lowercase, prefix_space=prefix_space)
    with reporting():
        texts = _lines(data)
        first = next(texts, None)
        if first is None:
            names = ", ".join(map(str, data[:MAX_FILES])) + ", ..." * (len(data) > MAX_FILES)
            raise ValueError(f"the texts hold no characters: expected at least one line that is not blank in {names}")
        trained = Tokenizer.train(chain([first], texts), vocab_size, config, more_special=special)
    write_text(out, trained.to_json())
    if kind in SUBWORDS and trained.vocab_size < vocab_size:
        print(
            f"the texts have {SUBWORDS[kind]} for only {trained.vocab_size:,} of the {vocab_size:,} tokens asked for",
            file=sys.stderr,
        )
    print(f"wrote {out}: {trained.kind}, {trained.vocab_size:,} tokens")


def encode(path: Path, *, tokens: bool = False, json: bool = False) -> None:
    """Encode the lines of stdin: print the token ids of each line, separated by spaces.

    Lines are read as by glassformer run. A line that is not UTF-8 is reported on stderr, an empty line stands for it
    (with --json and --tokens an object with the error), and the exit status is 1.

    Args:
        path: The tokenizer: a tokenizer.json, a SentencePiece model, a GGUF file, or a model folder.
        tokens: Print the text of each token instead of its id, as a JSON list.
        json: Print the ids as a JSON list.
    """
    from glassformer.cli.lines import check_stdin, run_lines
    from glassformer.text.tokenizer_report import encode_plain

    check_stdin()
    chosen = load_tokenizer(path)

    def printed(ids: list[int]) -> str:
        if tokens:
            return json_module.dumps(chosen.tokens(ids), ensure_ascii=False)
        return json_module.dumps(ids) if json else " ".join(map(str, ids))

    run_lines(lambda texts: [printed(ids) for ids in encode_plain(chosen, texts)], as_json=json or tokens)


def decode(path: Path) -> None:
    """Decode the lines of stdin: print the text of each line of token ids. A line break in a text is printed as \\n.

    Lines are read as by glassformer run. A line that holds anything but token ids is reported on stderr, an empty line
    stands for it, and the exit status is 1.

    Args:
        path: The tokenizer: a tokenizer.json, a SentencePiece model, a GGUF file, or a model folder.
    """
    from glassformer.cli.lines import check_stdin, run_lines

    check_stdin()
    chosen = load_tokenizer(path)
    size = chosen.vocab_size

    def decoded(line: str) -> str:
        words = line.replace(",", " ").strip().strip("[]").split()
        if not all(word.isdecimal() for word in words):
            raise ValueError(f"{line.strip()[:80]!r}: expected token ids, separated by spaces")
        unknown = next((word for word in words if int(word) >= size), None)
        if unknown is not None:
            raise ValueError(f"token {unknown[:20]}: expected 0 to {size - 1}")
        return chosen.decode(map(int, words))

    run_lines(lambda lines: list(map(decoded, lines)))


def inspect(path: Path, *, data: tuple[Path, ...] = (), longest: int = 10, json: bool = False) -> None:
    """Show what a tokenizer is: its kind, size, special tokens and longest tokens, and how it splits your texts.

    For each file of --data it shows the fertility (tokens per word), bytes per token, the share of unknown tokens, and
    the share of lines that decoding returns exactly. With one file per language, that is the fertility per language.

    Args:
        path: The tokenizer: a tokenizer.json, a SentencePiece model, a GGUF file, or a model folder.
        data: Text files to measure it on, one text per line.
        longest: The number of longest tokens to show.
        json: Print one JSON object.
    """
    from glassformer.text.tokenizer_report import longest_tokens

    if longest < 0:
        raise UsageError(f"--longest {longest}: expected 0 or more")
    chosen = load_tokenizer(path)
    found: dict[str, Any] = {
        "path": str(path),
        "kind": chosen.kind,
        "size": chosen.vocab_size,
        "special_tokens": chosen.tokens(sorted(chosen.special_ids)),
        "longest_tokens": [token for _, token in longest_tokens(chosen, longest)],
        "files": {str(file): measure_tokenizer(chosen, _lines([file])).to_dict() for file in data},
    }
    if json:
        print(json_module.dumps(found, ensure_ascii=False))
        return
    print(f"{path}: {found['kind']}, {found['size']:,} tokens")
    print(f"  special tokens  {' '.join(found['special_tokens']) or 'none'}")
    if found["longest_tokens"]:
        print(f"  longest tokens  {' '.join(map(_quoted, found['longest_tokens']))}")
    _print_table({(str(path), file): TokenizerReport(**_sums(values)) for file, values in found["files"].items()})
    for file, values in found["files"].items():
        if values["differing"] is not None:
            shown = f"{_quoted(values['differing'])} comes back as {_quoted(values['decoded'])}"
            print(f"  {file}: {shown}")


def compare(paths: tuple[Path, ...], *, data: tuple[Path, ...], json: bool = False) -> None:
    """Compare tokenizers on your texts: fertility, bytes per token, unknown tokens and round trips, for each file.

    Args:
        paths: Two or more tokenizers: each a tokenizer.json, a SentencePiece model, a GGUF file, or a model folder.
        data: Text files to measure them on, one text per line, such as one file per language.
        json: Print one JSON object for each tokenizer and file, one per line.
    """
    if len(paths) < 2:
        raise UsageError(f"compare needs two tokenizers or more: got {len(paths)}; inspect shows one")
    reports: dict[tuple[str, str], TokenizerReport] = {}
    for path in paths:
        chosen = load_tokenizer(path)
        reports |= {(str(path), str(file)): measure_tokenizer(chosen, _lines([file])) for file in data}
    if json:
        for (path_name, file_name), report in reports.items():
            print(json_module.dumps({"path": path_name, "file": file_name, **report.to_dict()}, ensure_ascii=False))
        return
    _print_table(reports)


ACTIONS: dict[str, Callable[..., None]] = {
    "train": train,
    "encode": encode,
    "decode": decode,
    "inspect": inspect,
    "compare": compare,
}


def load_tokenizer(path: Path) -> AnyTokenizer:
    """Load a tokenizer from a tokenizer.json, a SentencePiece model, a GGUF file, or a model folder of any library.

    `path` may also be a name on the Hugging Face hub, if the model is in their download cache.
    """
    from glassformer.checkpoint.download_cache import find_model
    from glassformer.text.external_vocabulary import read_tokenizer_file
    from glassformer.text.pretrained_tokenizers import PretrainedTokenizer
    from glassformer.text.tokenizer import SPECIAL, Tokenizer

    path = find_model(path)
    if path.suffix == ".gguf" and path.is_file():
        from glassformer.checkpoint.external_formats import read_external

        opened = read_external(path)
        return PretrainedTokenizer.from_json(
            opened.tokenizer_json or "{}", opened.tokenizer_config, opened.config, where=str(path)
        )
    contents = read_tokenizer_file(path)
    added = [token.get("content") for token in contents.get("added_tokens") or []]
    if tuple(added[: len(SPECIAL)]) == SPECIAL:
        return Tokenizer.from_json(json_module.dumps(contents), where=str(path))
    if path.is_dir():
        return PretrainedTokenizer.from_folder(path)
    return PretrainedTokenizer.from_json(json_module.dumps(contents), where=str(path))


def _lines(files: Sequence[Path]) -> Iterator[str]:
    """Yield the lines of text files without their ends. Blank lines are left out."""
    from glassformer.data.readers.text_files import BadUtf8Error, check_file, read_lines

    for file in files:
        check_file(file)
        for line in read_lines(file):
            if line.problem:
                raise BadUtf8Error(line.where)
            if line.text.strip():
                yield line.text


def _sums(values: dict[str, Any]) -> dict[str, Any]:
    return {name: values[name] for name in TokenizerReport.__dataclass_fields__}


def _print_table(reports: dict[tuple[str, str], TokenizerReport]) -> None:
    if not reports:
        return
    titles = ("tokenizer", "file", "texts", "tokens", "tokens/word", "bytes/token", "unknown", "round trip")
    rows = [titles] + [
        (
            path,
            file,
            f"{report.n_texts:,}",
            f"{report.n_tokens:,}",
            f"{report.fertility:.2f}",
            f"{report.bytes_per_token:.2f}",
            f"{report.unknown_rate:.2%}",
            f"{report.round_trip_rate:.2%}",
        )
        for (path, file), report in reports.items()
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(titles))]
    for row in rows:
        cells = [
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def _quoted(text: str) -> str:
    return json_module.dumps(text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}...", ensure_ascii=False)


def _usage() -> str:
    about = {name: (function.__doc__ or "").partition("\n")[0] for name, function in ACTIONS.items()}
    lines = "\n".join(f"  {name:9}{text}" for name, text in about.items())
    return (
        f"usage: glassformer tokenizer ACTION ...\n\n{lines}\n\nglassformer tokenizer ACTION --help shows its options."
    )
