"""Take over the vocabulary of another library's tokenizer for a model that is trained from scratch.

The tokenizer splits text as before. Only the ids change: Glassformer's special tokens get the first ids, the special
tokens of the other library are left out, and all other tokens follow in their old order.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glassformer.text.classic_files import read_classic
from glassformer.text.sentencepiece_file import build_tokenizer, read_sentencepiece
from glassformer.text.tokenizer_files import parse_object, read_object


def read_tokenizer_file(path: Path) -> dict[str, Any]:
    """Return a tokenizer as the parsed contents of a `tokenizer.json`.

    `path` is such a file, a SentencePiece model (.model or .spm), or a folder that holds a tokenizer's files.
    """
    if path.is_dir():
        if (path / "tokenizer.json").is_file():
            return read_tokenizer_file(path / "tokenizer.json")
        config, model = (read_object(path / name) for name in ("tokenizer_config.json", "config.json"))
        kind = model.get("model_type")
        return parse_object(
            read_classic(path, config, kind if isinstance(kind, str) else None, target=False).inner.to_str(), str(path)
        )
    if not path.is_file():
        raise ValueError(f"{path}: no such file or folder: expected a tokenizer.json, a .model file or a model folder")
    if path.suffix in (".model", ".spm"):
        try:
            return parse_object(build_tokenizer(read_sentencepiece(path)).to_str(), str(path))
        except Exception as error:  # the library raises bare Exceptions
            raise ValueError(f"{path} is not a SentencePiece model: {error}") from error
    return read_object(path)


def renumber(contents: dict[str, Any], special: Sequence[str], *, unknown: str, where: str) -> str:
    """Return the text of a `tokenizer.json` that splits text as `contents` does, with other ids.

    `special` are the special tokens that get the first ids, in this order, and `unknown` is the one for unknown pieces.
    Text never becomes one of them, except an unknown piece. Raises ValueError naming `where`, the source of `contents`,
    if they are no tokenizer.
    """
    try:
        return _renumber(contents, special, unknown)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{where} is not a tokenizer: {type(error).__name__}: {str(error)[:200]}") from error


def _renumber(contents: dict[str, Any], special: Sequence[str], unknown: str) -> str:
    model = dict(contents["model"])
    added = contents.get("added_tokens") or []
    left_out = {token["content"] for token in added if token["special"]} | {*special}
    is_list = isinstance(model["vocab"], list)
    scores = dict(model["vocab"]) if is_list else {}
    ids = {piece: index for index, (piece, _) in enumerate(model["vocab"])} if is_list else dict(model["vocab"])
    for role in ("unk_token", "unk_id"):
        if isinstance(model.get(role), int):
            left_out.add(model["vocab"][model[role]][0])
        elif isinstance(model.get(role), str):
            left_out.add(model[role])
    plain = [piece for piece in sorted(ids, key=ids.__getitem__) if piece not in left_out]
    own = [token for token in added if token["content"] not in left_out and token["content"] not in ids]
    order = [*special, *plain]
    if is_list:
        model |= {"vocab": [[piece, scores.get(piece, 0.0)] for piece in order], "unk_id": special.index(unknown)}
    else:
        model["vocab"] = {piece: index for index, piece in enumerate(order)}
        if model.get("unk_token") is not None:
            model["unk_token"] = unknown
    if model.get("merges"):
        known = {*plain}
        pairs = [tuple(merge.split(" ", 1)) if isinstance(merge, str) else tuple(merge) for merge in model["merges"]]
        model["merges"] = [[a, b] for a, b in pairs if {a, b, a + b} <= known]
    model.pop("dropout", None)
    entries = [_added(token, index) for index, token in enumerate(special)]
    places = {piece: index for index, piece in enumerate(order)}
    kept = [token for token in added if token["content"] in places and token["content"] not in left_out]
    entries += [{**token, "id": places[token["content"]], "special": False} for token in kept]
    entries += [{**token, "id": len(order) + number, "special": False} for number, token in enumerate(own)]
    return json.dumps(
        contents
        | {
            "model": model,
            "added_tokens": entries,
            "pre_tokenizer": _guarded(contents.get("pre_tokenizer"), special),
            "post_processor": None,
            "truncation": None,
            "padding": None,
        }
    )


def _guarded(pre_tokenizer: Any, special: Sequence[str]) -> Any:
    """Return the pre-tokenizer, changed so that the text `<s>` is split after `<` and never matches a special token.

    Byte-level pre-tokenizers split there already.
    """
    if isinstance(pre_tokenizer, dict) and pre_tokenizer.get("type") == "ByteLevel":
        return pre_tokenizer
    rest = "|".join(token[1:].replace("|", r"\|").replace("[", r"\[") for token in special if token.startswith("<"))
    guard = {"type": "Split", "pattern": {"Regex": f"<(?={rest})"}, "behavior": "Isolated", "invert": False}
    return guard if pre_tokenizer is None else {"type": "Sequence", "pretokenizers": [guard, pre_tokenizer]}


def _added(token: str, index: int) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": index, "content": token, "special": True, **flags}
