"""Text never becomes a control token: inside a tokenizer each of them goes by a secret name that no text contains.

Telling the library to leave special tokens in a text alone is not enough. A unigram or whole-word vocabulary finds
`</s>` by itself, because it is a piece like any other; so do merges that spell a token; and tokens such as
`<tool_call>` are often not marked as special at all. Under another name, drawn afresh for each tokenizer, none of this
can happen.
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
    """Whether an added token steers the model: those marked so, and those written like `<tool_call>` or `[INST]`.

    Others are text: runs of spaces, whole words, HTML. A single character always is, since there is no other way to
    write it.
    """
    if len(token) < 2 or token.isspace() or _BYTE.fullmatch(token):
        return False
    return special or (_BRACKETED.fullmatch(token) is not None and _HTML.fullmatch(token) is None)


def give_secret_names(contents: dict[str, Any], also: Collection[str] = ()) -> dict[str, str]:
    """Rename the control tokens, and the pieces in `also`, in the contents of a `tokenizer.json`; say who is who."""
    added = contents["added_tokens"]
    control = {token["content"] for token in added if is_control(token["content"], special=token["special"])}
    secret = secrets.token_hex(16)
    names = {token: f"{secret}{index:08x}" for index, token in enumerate(sorted(control.union(also)))}
    for token in added:
        if token["content"] in names:
            # The name is put into a text as it is, so it is looked for before the text is changed in any way.
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
    """Whether a merge, `"a b"` or `["a", "b"]`, makes a renamed token or needs one."""
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left + right in names or left in names or right in names
