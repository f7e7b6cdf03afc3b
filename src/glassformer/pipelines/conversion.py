"""Convert a model to the format of another library, or to Glassformer's own. `agreement.py` verifies the result."""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import tokenizers

from glassformer.base.checks import shown
from glassformer.checkpoint import load_model, save_model
from glassformer.checkpoint.ct2_export import Vocabulary, blocking_ct2, export_ct2
from glassformer.checkpoint.download_cache import find_model
from glassformer.checkpoint.external_formats import ORIGIN, is_external, read_external, read_origin
from glassformer.checkpoint.gguf_export import MAGIC, Numbers, blocking_gguf, write_gguf
from glassformer.checkpoint.hf import UnsupportedModelError, family_by_type, family_of
from glassformer.checkpoint.hf.extra_heads import read_extra_heads
from glassformer.checkpoint.hf.folder import save_hf_folder
from glassformer.checkpoint.hf.generation_settings import GENERATION, KEPT_KEYS, kept_settings
from glassformer.checkpoint.limits import refuse
from glassformer.checkpoint.onnx_export import blocking_onnx, export_onnx
from glassformer.checkpoint.output_folder import check_output, check_output_file
from glassformer.models import DecoderModel, EncoderDecoderModel
from glassformer.pipelines.agreement import AnyModel, Format
from glassformer.pipelines.hf_files import (
    generation_text,
    hf_labels,
    hf_texts,
    sentence_files,
    without_embedding_head,
)
from glassformer.pipelines.pipeline_registry import TASK
from glassformer.text.pretrained_tokenizers import PretrainedTokenizer
from glassformer.text.tokenizer import BEGIN, END, PAD

TEXTS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    GENERATION,
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "chat_template.jinja",
    "labels.json",
    "source_tokenizer.json",
    "target_tokenizer.json",
)
"""Names of the tokenizer and generation files that `convert` reads from a model folder and may copy to the new one."""
LABELS = "labels.json"
"""The file of an ONNX folder that lists the names of the classes, in the order of the outputs."""
SCORE_FUNCTIONS = ("sentence_transformers", "sbert_ce_default_activation_function")
"""Keys of `config.json` with which sentence-transformers names the function on the score of a cross-encoder."""


def convert(
    path: Path | str,
    out: Path | str,
    to: Format,
    *,
    numbers: Numbers = "f16",
    allow_pickle: bool = False,
    overwrite: bool = False,
) -> AnyModel:
    """Write the model at `path` to `out` in the format `to`, and return the model as it was loaded from `path`.

    `to` is "hf" (HF Transformers), "safetensors" (Glassformer), "gguf" (llama.cpp), "ct2" (CTranslate2) or "onnx".
    With "hf", an encoder that gives vectors of texts gets the files of sentence-transformers, and what is returned is
    the encoder without its head.

    `out` must be a new path or an empty folder. With `overwrite` it may also be an existing model, which is replaced.
    Files that are not part of a model are never replaced. `numbers` is the number format of a GGUF file: "f32", "f16"
    or "q8_0" (8 bits). `allow_pickle` also reads weights from pytorch_model.bin, with a reader that accepts only
    tensors.

    >>> import glassformer as gf
    >>> _ = gf.train("classification", data="reviews.tsv", out="my-classifier", minutes=5)
    >>> gf.convert("my-classifier", to="safetensors", out="my-copy").kind
    'encoder'
    """
    _check_choices(path, out, to, numbers)
    path, out = find_model(path), Path(out)
    if out.exists() and path.exists() and out.samefile(path):
        raise ValueError(f"--out {out} is the model itself: expected another name")
    if to == "gguf":
        check_output_file(out, MAGIC, overwrite=overwrite)
    else:
        check_output(out, overwrite=overwrite)
    model = load_model(path, allow_pickle=allow_pickle)
    external = read_external(path, allow_pickle=allow_pickle) if is_external(path) else None
    homes = [path] if external is None or external.base is None else [external.base, path]
    texts = {
        name: (home / name).read_text(encoding="utf-8") for home in homes for name in TEXTS if (home / name).is_file()
    }
    origin = read_origin(path) if external is None else external.config
    if origin is not None:
        values = {key: origin[key] for key in origin if key.endswith("_token_id")} | _labels(origin, model)
        values |= {key: origin[key] for key in KEPT_KEYS if key in origin}
        values |= {} if external is not None else hf_labels(path, model)
        family = family_by_type(origin.get("model_type"))
    else:
        values = {"pad_token_id": PAD, "bos_token_id": BEGIN, "eos_token_id": END}
        values |= {"decoder_start_token_id": BEGIN} if model.kind == "encoder_decoder" else {}
        family = None
    if external is not None and external.tokenizer_json is not None:
        texts["tokenizer.json"] = external.tokenizer_json
        texts["tokenizer_config.json"] = json.dumps(dict(external.tokenizer_config), indent=2)
    if (external is None) != (to == "safetensors"):
        stored = texts.pop(GENERATION, None)  # each library has its own settings
        search = json.loads(stored or "{}")
        if to == "hf" and origin is None:
            texts |= hf_texts(model, texts, search, values)
            values |= hf_labels(path, model)
        elif to == "hf" and stored is not None:
            texts |= generation_text(model, search, {key: values[key] for key in values if key.endswith("_token_id")})
    if to == "safetensors" and origin is not None:
        values |= kept_settings(origin, homes[0]) if external is not None else {}
        texts[ORIGIN] = json.dumps({"model_type": origin["model_type"], **values}, indent=2)
    if to == "hf":
        home = None if external is None or not path.is_dir() else homes[0]
        more, weights = sentence_files(model, home, allow_pickle)
        texts |= more
        model = without_embedding_head(model)
    if to == "safetensors":
        if external is None and (path / TASK).is_file():
            texts[TASK] = (path / TASK).read_text(encoding="utf-8")
        save_model(out, model, texts, overwrite=overwrite)
        return model
    try:
        if to == "hf":
            extra = None if external is None else read_extra_heads(external, model.config)
            save_hf_folder(
                out,
                model,
                family=family,
                values=values,
                texts=texts,
                extra_heads=extra,
                more_tensors=weights,
                overwrite=overwrite,
            )
        elif to == "onnx":
            names = (values | hf_labels(path, model)).get("id2label")
            if names is not None and model.config.n_labels == len(names):
                texts[LABELS] = json.dumps(list(names.values()), ensure_ascii=False, indent=2)
            export_onnx(model, out, texts, overwrite=overwrite)
        elif to == "ct2":
            if not isinstance(model, EncoderDecoderModel):
                raise UnsupportedModelError(
                    f"CTranslate2: {path} is of kind {model.kind!r}: expected an encoder-decoder"
                )
            refuse("CTranslate2", blocking_ct2(model.config))
            export_ct2(model, out, _both_sides(model, texts, values, reads_end=origin is None), overwrite=overwrite)
        else:
            if not isinstance(model, DecoderModel):
                raise UnsupportedModelError(f"{path} is of kind {model.kind!r}: expected a decoder, for a GGUF file")
            write_gguf(out, model, numbers=numbers, overwrite=overwrite, **_vocabulary(texts))
    except UnsupportedModelError as error:
        others = [f"--to {name}" for name in expressible_in(model) if name != to]
        hint = f". This model can be written with {' or '.join(others)}" if others else ""
        raise UnsupportedModelError(f"{error}{hint}") from error
    return model


def expressible_in(model: AnyModel) -> list[Format]:
    """Return the formats of other libraries that can express a model, judged by its config."""
    config, found = model.config, list[Format]()
    with suppress(UnsupportedModelError):
        family_of(config.with_head("none") if config.head == "embedding" else config)
        found.append("hf")
    if isinstance(model, EncoderDecoderModel) and not blocking_ct2(config):
        found.append("ct2")
    if not blocking_onnx(config):
        found.append("onnx")
    if isinstance(model, DecoderModel) and not all(blocking_gguf(config).values()):
        found.append("gguf")
    return found


def _check_choices(path: object, out: object, to: object, numbers: object) -> None:
    """Raise ValueError unless `to` is a format and `numbers` a number format of GGUF files."""
    formats = get_args(Format)
    if to not in formats:
        is_path = isinstance(to, Path) or (isinstance(to, str) and (not to.isidentifier() or os.path.exists(to)))
        is_swapped = is_path or path in formats or out in formats
        order = "; the order of the arguments is convert(path, out, to)" if is_swapped else ""
        raise ValueError(f"to={shown(to)}: expected one of {', '.join(formats)}{order}")
    if numbers not in get_args(Numbers):
        raise ValueError(f"numbers={shown(numbers)}: expected one of {', '.join(get_args(Numbers))}")


def _labels(origin: Mapping[str, Any], model: AnyModel) -> dict[str, Any]:
    """Return the class names in HF's config.json (`id2label`, `label2id`) if they name every class of the model.

    They are kept for a model without classes, too: a head that is written back may count its classes by them. So is the
    function that sentence-transformers applies to the score of a cross-encoder.
    """
    kept = {key: origin[key] for key in SCORE_FUNCTIONS if origin.get(key) is not None and model.config.n_labels == 1}
    names = origin.get("id2label")
    if not isinstance(names, Mapping) or model.config.n_labels not in (None, len(names)):
        return kept
    return kept | {key: origin[key] for key in ("id2label", "label2id", "problem_type") if origin.get(key) is not None}


def _both_sides(model: EncoderDecoderModel, texts: dict[str, str], ids: dict[str, Any], reads_end: bool) -> Vocabulary:
    """Return the source and target vocabularies that a CTranslate2 folder needs, from the tokenizer files in `texts`.

    `ids` holds the ids of the special tokens. `reads_end` is True if CTranslate2 must append the end token to each
    source. It is False for models of other libraries, whose tokenizers append the token themselves.
    """
    sides = []
    for name, size in (("source", model.config.source_vocab), ("target", model.config.vocab_size)):
        text = texts.get(f"{name}_tokenizer.json", texts.get("tokenizer.json"))
        if text is None:
            raise ValueError("the model has no tokenizer.json: expected one, for CTranslate2 works on tokens' names")
        known = {index: token for token, index in tokenizers.Tokenizer.from_str(text).get_vocab().items()}
        sides.append([known.get(index, f"<unused{index}>") for index in range(size)])
    source, target = sides
    unknown = next((token for token in ("<unk>", "[UNK]", "<|endoftext|>") if token in target), target[0])
    begin, end = ids.get("decoder_start_token_id"), ids.get("eos_token_id")
    if not isinstance(begin, int) or not isinstance(end, int):
        raise ValueError("config.json lacks decoder_start_token_id or eos_token_id: expected both")
    return Vocabulary(
        source=source, target=target, begin=target[begin], end=target[end], unknown=unknown, reads_end=reads_end
    )


def _vocabulary(texts: dict[str, str]) -> dict[str, Any]:
    """Return the keyword arguments with which `write_gguf` writes the tokenizer.

    `texts` holds the tokenizer files by name. The result is empty if tokenizer.json is not one of them.
    """
    if "tokenizer.json" not in texts:
        return {}
    config = json.loads(texts.get("tokenizer_config.json", "{}"))
    tokenizer = PretrainedTokenizer.from_json(texts["tokenizer.json"], config)
    roles = {"bos": tokenizer.begin, "eos": tokenizer.end, "pad": tokenizer.pad}
    return {"tokenizer_json": texts["tokenizer.json"], "roles": roles, "chat_template": tokenizer.chat_template}
