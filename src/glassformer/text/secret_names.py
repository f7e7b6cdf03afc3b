"""Rename a tokenizer's control tokens to random strings, so that no input text is tokenized as a control token.

Configuring the `tokenizers` library to ignore special tokens is not enough. A unigram or word-level vocabulary
finds `</s>` as an ordinary piece, BPE merges may build a control token, and tokens such as `<tool_call>` are often not
marked as special. Random names, drawn for each tokenizer, prevent all of these.
"""

import re
import secrets
from collections.abc import Collection
from typing import Any

_BRACKETED = re.compile(r"\N{LOWER ONE EIGHTH BLOCK}?(<.+>|\[.+\]|\{.+\})", re.DOTALL)
_BYTE = re.compile("<0x[0-9A-Fa-f]{2}>")
_HTML = re.compile(
    "</?(table|caption|thead|tbody|tfoot|tr|th|td|ul|ol|li|p|h[1-6]|blockquote|pre|code|br|hr|a|img|strong|em|b|i|u|s"
    "|sub|sup|span|div)>"
)


def is_control(token: str, *, special: bool) -> bool:
    """Return whether an added token is a control token: marked as special, or written like `<tool_call>` or `[INST]`.

    Other added tokens are text: runs of spaces, whole words, HTML. A single character is always text, since there is no
    other way to write it.
    """
    if len(token) < 2 or token.isspace() or _BYTE.fullmatch(token):
        return False
    return special or (_BRACKETED.fullmatch(token) is not None and _HTML.fullmatch(token) is None)


def give_secret_names(contents: dict[str, Any], also: Collection[str] = ()) -> dict[str, str]:
    """Rename the control tokens, and the pieces in `also`, in a parsed `tokenizer.json`, which is modified.

    Returns the random name of each renamed token. Merges that involve such a token are removed.
    """
    added = contents["added_tokens"]
    control = {token["content"] for token in added if is_control(token["content"], special=token["special"])}
    secret = secrets.token_hex(16)
    names = {token: f"{secret}{index:08x}" for index, token in enumerate(sorted(control.union(also)))}
    for token in added:
        if token["content"] in names:
            # Names are matched before normalization, because they are inserted into the text unchanged.
            token |= {"content": names[token["content"]], "normalized": False}
    model = contents["model"]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {names.get(piece, piece): index for piece, index in model["vocab"].items()}
    else:
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in model["vocab"]]
    if isinstance(model.get("unk_token"), str):
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    if model.get("merges"):
        model["merges"] = [merge for merge in model["merges"] if not _spells(merge, names)]
    return names


def _spells(merge: str | list[str], names: Collection[str]) -> bool:
    """Return whether a merge, `"a b"` or `["a", "b"]`, produces or uses a renamed token."""
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left + right in names or left in names or right in names
