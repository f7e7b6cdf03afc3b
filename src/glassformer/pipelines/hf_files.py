"""Make what HF Transformers and sentence-transformers need beside the weights of a model.

These are the tokenizer files, the generation settings, the class names and the modules after an encoder.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders
from tokenizers.processors import TemplateProcessing
from torch import Tensor

from glassformer.checkpoint.hf.folder import open_weights
from glassformer.checkpoint.hf.sentence_folder import (
    DENSE_NAMES,
    DENSE_WEIGHTS,
    SETTINGS,
    dense_tensors,
    read_sentence_modules,
    sentence_texts,
    with_sentence_head,
)
from glassformer.checkpoint.safe_files import read_json_object
from glassformer.models import DecoderModel, EncoderDecoderModel, EncoderModel
from glassformer.models.heads import EmbeddingHead
from glassformer.pipelines.embedder import longest_text
from glassformer.pipelines.pipeline_registry import TASK
from glassformer.text.tag_viterbi import TagPaths
from glassformer.text.tokenizer import BEGIN, END, PAD, SPECIAL, UNKNOWN

AnyModel = EncoderModel | DecoderModel | EncoderDecoderModel
SEARCH_FIELDS = ("num_beams", "length_penalty", "no_repeat_ngram_size", "repetition_penalty", "min_new_tokens")
"""Generation settings with the same name and meaning in Glassformer and in HF's generation_config.json."""


def hf_texts(
    model: AnyModel, texts: Mapping[str, str], search: Mapping[str, Any], ids: Mapping[str, Any]
) -> dict[str, str]:
    """Return the tokenizer files and generation_config.json for HF Transformers, by file name.

    `texts` holds the files of the model folder, `search` its generation settings, and `ids` the ids of the special
    tokens. With the returned files, HF's `AutoTokenizer` gives the token ids that the model was trained on: text never
    becomes a special token, and the end token follows each text that an encoder reads. The result has no tokenizer
    files if source and target have separate tokenizers, which HF cannot express; `convert` copies these unchanged.
    """
    found = {}
    if "tokenizer.json" in texts:
        found["tokenizer.json"] = _as_hf_reads(model, texts["tokenizer.json"])
        settings = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "pad_token": SPECIAL[PAD],
            "bos_token": SPECIAL[BEGIN],
            "eos_token": SPECIAL[END],
            "unk_token": SPECIAL[UNKNOWN],
            "split_special_tokens": True,
            "clean_up_tokenization_spaces": False,
            "model_input_names": ["input_ids", "attention_mask"],
        }
        if model.config.max_len is not None:
            settings["model_max_length"] = model.config.max_len
        found["tokenizer_config.json"] = json.dumps(settings, indent=2)
    return found | generation_text(model, search, ids)


def generation_text(model: AnyModel, search: Mapping[str, Any], ids: Mapping[str, Any]) -> dict[str, str]:
    """Return generation_config.json for HF Transformers, by its name; empty for a model that generates no text."""
    if model.config.head != "language_model" or isinstance(model, EncoderModel):
        return {}
    return {"generation_config.json": json.dumps({**ids, **_search(model, search)}, indent=2)}


def hf_labels(folder: Path, model: AnyModel) -> dict[str, Any]:
    """Return the class names as entries of HF's `config.json` (`id2label`, `label2id`).

    The result is empty if the folder's `task.json` does not name every class of the model.
    """
    about = read_json_object(folder / TASK) if (folder / TASK).is_file() else {}
    names = about.get("labels")
    if isinstance(names, list) and model.config.head == "token_class":
        names = TagPaths(list(map(str, names))).tags
    if not isinstance(names, list) or len(names) != model.config.n_labels:
        return {}
    kind = {"problem_type": "multi_label_classification"} if about.get("multi_label") is True else {}
    return kind | {
        "id2label": {str(index): str(name) for index, name in enumerate(names)},
        "label2id": {str(name): index for index, name in enumerate(names)},
    }


def _as_hf_reads(model: AnyModel, text: str) -> str:
    """Return the tokenizer.json `text`, changed so that it appends the end token to each text that an encoder reads.

    For an encoder-decoder, decoding also removes the space that the tokenizer adds before a text (`prefix_space`). For
    a decoder, which reads no end token, `text` is returned unchanged. Decoding then keeps the space, because the output
    of a decoder may continue another text.
    """
    inner = tokenizers.Tokenizer.from_str(text)
    if isinstance(model, DecoderModel) or inner.post_processor is not None:
        return text
    if isinstance(model, EncoderDecoderModel) and getattr(inner.pre_tokenizer, "add_prefix_space", False):
        inner.decoder = decoders.Sequence([inner.decoder, decoders.Strip(" ", 1, 0)])
    end = SPECIAL[END]
    inner.post_processor = TemplateProcessing(
        single=f"$A {end}", pair=f"$A {end} $B:1 {end}:1", special_tokens=[(end, END)]
    )
    return inner.to_str(pretty=True)


def _search(model: AnyModel, search: Mapping[str, Any]) -> dict[str, Any]:
    """Translate Glassformer's generation settings to HF's, without those that HF does not have."""
    found = {key: search[key] for key in SEARCH_FIELDS if key in search}
    if found.get("num_beams", 1) > 1:
        found["early_stopping"] = search.get("early_stopping", "never")
    longest = search.get("max_new_tokens", 256) + 1  # HF counts the start token
    limit = model.config.max_len
    if isinstance(model, EncoderDecoderModel):
        found["max_length"] = longest if limit is None else min(longest, limit)
    return found


def sentence_files(
    model: AnyModel, folder: Path | None, allow_pickle: bool = False
) -> tuple[dict[str, str], dict[str, dict[str, Tensor]]]:
    """Return the files of sentence-transformers for an encoder that gives vectors: texts and tensors, by file name.

    `folder` is the HF folder of the model; None if the model is in another format. Both results are empty for models
    that give no vectors.
    """
    modules = None if folder is None else read_sentence_modules(folder)
    dense: dict[str, Tensor] = {}
    if folder is not None and modules is not None:
        config, longest = with_sentence_head(folder, model.config), longest_text(modules.encoder)
        if modules.dense is not None:
            dense = dense_tensors(modules.dense, open_weights(modules.dense, allow_pickle))
    elif isinstance(model.head, EmbeddingHead):
        config, longest = model.config, model.config.max_len
        if model.head.transform is not None:
            dense = dict(model.head.transform.dense.state_dict())
    else:
        return _settings(folder), {}
    texts = sentence_texts(config, longest=longest) | _settings(None if modules is None else modules.folder)
    theirs = {ours: name for name, ours in DENSE_NAMES.items()}
    return texts, {DENSE_WEIGHTS: {theirs[name]: tensor for name, tensor in dense.items()}} if dense else {}


def _settings(folder: Path | None) -> dict[str, str]:
    """Return the file with the prompts of a sentence-transformers folder, or the activation of a cross-encoder."""
    if folder is None or not (folder / SETTINGS).is_file():
        return {}
    return {SETTINGS: (folder / SETTINGS).read_text(encoding="utf-8")}


def without_embedding_head(model: AnyModel) -> AnyModel:
    """Return the model that HF Transformers can express: one with an embedding head loses it."""
    return model.copy_with_head(model.config.with_head("none")).eval() if model.config.head == "embedding" else model
