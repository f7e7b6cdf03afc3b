"""Read the text and JSON files of a tokenizer. Errors name the file."""

import json
from pathlib import Path
from typing import Any


def read_utf8(file: Path) -> str:
    """Return the text of a file. Raises ValueError if it is not UTF-8."""
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8 text: {error}") from error


def read_object(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file, or an empty one if the file does not exist."""
    return parse_object(read_utf8(file), str(file)) if file.is_file() else {}


def parse_object(text: str, where: str) -> dict[str, Any]:
    """Return the JSON object in a text. Raises ValueError for anything else; `where` is the file in the error."""
    found = parse_json(text, where)
    if not isinstance(found, dict):
        raise ValueError(f"{where} holds a {type(found).__name__}: expected an object")
    return found


def parse_json(text: str, where: str) -> Any:
    """Return the value of a JSON text. Raises ValueError if it is not JSON; `where` is the file in the error."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not JSON: {error}") from error
