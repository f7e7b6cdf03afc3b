"""The tokenizers and the origin that a fine-tuned model keeps of the pretrained model that it started from.

A fine-tuned folder holds them as `tokenizer.json`, `tokenizer_config.json` and `origin.json`, so that it can be used,
fine-tuned again and converted back to the format of its family.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from glassformer.checkpoint.external_formats import ORIGIN, is_external, read_external, read_origin
from glassformer.checkpoint.hf.generation_settings import special_ids
from glassformer.pipelines.blanks import GAP_TOKENS, OTHER_GAP_TOKENS
from glassformer.text import Tokenizer
from glassformer.text.language_codes import LanguageLayout
from glassformer.text.pretrained_tokenizers import PretrainedTokenizer, tokenizer_files

TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
TARGET = "target_"
"""Prefix of the files of the target tokenizer, if a translation model has two tokenizers."""
AnyTokenizer = Tokenizer | PretrainedTokenizer


class PretrainedBase(NamedTuple):
    """The tokenizers and the origin of a pretrained model."""

    source: PretrainedTokenizer
    target: PretrainedTokenizer
    """The same object as `source` unless the model has two tokenizers."""
    origin: Mapping[str, Any]
    """HF's `model_type`, and the ids of special tokens by their names in HF's `config.json`."""
    files: Mapping[str, str]
    """The files that a fine-tuned model keeps, by name."""

    def with_chat_template(self, template: str) -> "PretrainedBase":
        """Return a copy whose tokenizer has this chat template."""
        config = json.loads(self.files[TOKENIZER_CONFIG]) | {"chat_template": template}
        return _make({**self.files, TOKENIZER_CONFIG: json.dumps(config, indent=2)}, self.origin, "tokenizer.json")

    def with_languages(self, layout: LanguageLayout, source: str, target: str) -> "PretrainedBase":
        """Return a copy that marks sources and targets with codes of `layout`, where HF's tokenizers put them.

        The decoder starts with the code of the target, or it is the first token that is written.
        """
        files = {name: text for name, text in self.files.items() if not name.startswith(TARGET)}
        contents = json.loads(files[TOKENIZER])
        config = json.loads(files[TOKENIZER_CONFIG]) | {"src_lang": source, "tgt_lang": target}
        for prefix, code in (("", source), (TARGET, target)):
            marked = contents | {"post_processor": layout.post_processor(code)}
            files[f"{prefix}{TOKENIZER}"] = json.dumps(marked, ensure_ascii=False)
            files[f"{prefix}{TOKENIZER_CONFIG}"] = json.dumps(config, indent=2, ensure_ascii=False)
        begin = {"decoder_start_token_id": layout.codes[target]}
        if layout.is_before:
            begin = {"decoder_start_token_id": layout.end[1], **_ids(self.origin, "decoder_start_token_id")}
            begin["forced_bos_token_id"] = layout.codes[target]
        return _make(files, {**self.origin, **begin}, "tokenizer.json")


def read_base(path: Path) -> PretrainedBase | None:
    """Return the tokenizers of a pretrained model, or of one that was fine-tuned from it.

    `path` is a model folder or a GGUF file. The result is None for a model whose tokenizer Glassformer trained.
    """
    if not is_external(path):
        origin = read_origin(path)
        return None if origin is None else _make(_tokenizers(path), origin, str(path))
    opened = read_external(path)
    home = path if opened.base is None or (path / TOKENIZER).is_file() else opened.base
    ids = special_ids(opened.config, path if opened.base is None else opened.base)
    origin = {"model_type": opened.config["model_type"], **{key: ids[key] for key in ids if ids[key] is not None}}
    if path.is_dir():
        return _make(_tokenizers(home), origin, str(home))
    if opened.tokenizer_json is None:
        raise ValueError(f"{path} holds no tokenizer: expected tokenizer.bin beside it")
    config = json.dumps(dict(opened.tokenizer_config), indent=2)
    return _make({TOKENIZER: opened.tokenizer_json, TOKENIZER_CONFIG: config}, origin, str(path))


def document_start(tokenizer: AnyTokenizer) -> int:
    """Return the id with which a document starts: the token that the tokenizer puts before a text, else `end`.

    Raises ValueError if the model has neither.
    """
    if not isinstance(tokenizer, Tokenizer):
        before = tokenizer.encode("")
        if before and before[0] == tokenizer.begin:
            return before[0]
    if tokenizer.end is None:
        raise ValueError("the tokenizer has no token that ends a text (eos_token): expected one, between documents")
    return tokenizer.end


def gap_tokens(tokenizer: AnyTokenizer) -> tuple[str, str, str] | None:
    """Return the names of the tokens with which a code model fills in gaps; None if the tokenizer has none."""
    if isinstance(tokenizer, Tokenizer):
        return GAP_TOKENS if all(map(tokenizer.has_special, GAP_TOKENS)) else None
    return next((names for names in OTHER_GAP_TOKENS if None not in map(tokenizer.id_of, names)), None)


def _ids(origin: Mapping[str, Any], *names: str) -> dict[str, int]:
    """Return the ids of special tokens that the origin has under these names."""
    return {name: origin[name] for name in names if type(origin.get(name)) is int}


def _tokenizers(folder: Path) -> dict[str, str]:
    """Return the tokenizer files of a model folder, with separate ones for the target if they differ."""
    files = tokenizer_files(folder)
    stored = {f"{TARGET}{name}": folder / f"{TARGET}{name}" for name in (TOKENIZER, TOKENIZER_CONFIG)}
    if all(file.is_file() for file in stored.values()):
        return files | {name: file.read_text(encoding="utf-8") for name, file in stored.items()}
    if (folder / TOKENIZER).is_file():
        return files
    target = tokenizer_files(folder, target=True)
    return files if target == files else files | {f"{TARGET}{name}": text for name, text in target.items()}


def _make(files: Mapping[str, str], origin: Mapping[str, Any], where: str) -> PretrainedBase:
    def tokenizer(prefix: str) -> PretrainedTokenizer:
        config = json.loads(files[f"{prefix}{TOKENIZER_CONFIG}"])
        return PretrainedTokenizer.from_json(files[f"{prefix}{TOKENIZER}"], config, origin, where=where)

    source = tokenizer("")
    target = tokenizer(TARGET) if f"{TARGET}{TOKENIZER}" in files else source
    return PretrainedBase(source, target, origin, {**files, ORIGIN: json.dumps(dict(origin), indent=2)})
